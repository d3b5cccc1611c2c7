/**
 * The page: load a bundle, continue a text, show how fast.
 *
 * Its address may say more: `?prompt=…` begins with that text at once, `?threads=1` says how many
 * threads compute, and `?self-test` runs the bundle's self-test and posts what it found to
 * `/result`.
 */

import { generate } from "../node/decoder.mjs";
import { selfTest } from "../node/self-test.mjs";
import { TextStream } from "../node/text-stream.mjs";
import { openBundle } from "./bundle.mjs";
import { picker } from "./sampling.mjs";

const BUNDLE = new URL("/bundle/", location.href);
const element = (id) => document.getElementById(id);
let isStopped = false;

/** Load the bundle and let people write. */
async function start() {
  const query = new URLSearchParams(location.search);
  const threads = Number(query.get("threads")) || defaultThreads();
  const opened = await openBundle(BUNDLE, { threads, onProgress: showProgress });
  if (query.has("self-test")) {
    await post(await selfTest(opened.decoder, opened.manifest.self_test));
  }
  showModel(opened.manifest, threads);
  element("form").addEventListener("submit", (event) => {
    event.preventDefault();
    reply(opened).catch(showError);
  });
  element("stop").addEventListener("click", () => (isStopped = true));
  setBusy(false);
  if (query.has("prompt")) {
    element("prompt").value = query.get("prompt");
    element("form").requestSubmit();
  }
}

/** Continue the text of the form, piece by piece. */
async function reply({ manifest, decoder, tokenizer }) {
  const prompt = element("prompt").value;
  const stream = new TextStream(tokenizer);
  const times = [performance.now()];
  setBusy(true);
  decoder.reset();
  element("given").textContent = prompt;
  element("written").textContent = "";
  try {
    const ids = tokenizer.encode(prompt).ids;
    const room = manifest.context_length - ids.length + 1;
    const count = Math.min(element("tokens").valueAsNumber, room);
    const pick = picker(element("temperature").valueAsNumber);
    for await (const tokenId of generate(decoder, ids, count, pick)) {
      times.push(performance.now());
      showSpeed(times);
      if (isStopped || manifest.tokens.eos_ids.includes(tokenId)) break;
      element("written").append(stream.push(tokenId));
    }
    element("written").append(stream.flush());
  } finally {
    setBusy(false);
  }
}

/** @param {number[]} times in milliseconds: the start, then each token's */
function showSpeed(times) {
  const [began, first] = times;
  const seconds = (times.at(-1) - first) / 1000;
  const speed = seconds > 0 ? `, then ${((times.length - 2) / seconds).toFixed(0)} a second` : "";
  const count = times.length - 1;
  element("speed").textContent =
    `${count} tokens: the first after ${(first - began).toFixed(0)} ms${speed}`;
}

function showProgress(loaded, total) {
  element("progress").value = loaded / total;
  element("status").textContent = `Loading ${megabytes(loaded)} of ${megabytes(total)}`;
}

function showModel({ name, precision, files }, threads) {
  const size = Object.values(files).reduce((total, file) => total + file.size_bytes, 0);
  element("loading").hidden = true;
  element("model").textContent =
    `${name}: ${precision.toUpperCase()}, ${megabytes(size)}, ${threads} ${threads === 1 ? "thread" : "threads"}. ` +
    "It runs in this page; what you write stays here.";
}

function showError(error) {
  element("loading").hidden = false;
  element("status").textContent = error.message;
}

function setBusy(isBusy) {
  isStopped = false;
  element("generate").disabled = isBusy;
  element("stop").disabled = !isBusy;
}

/** A page has threads where its server isolates it from other origins. */
const defaultThreads = () => (self.crossOriginIsolated ? navigator.hardwareConcurrency : 1);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const post = (content) => fetch("/result", { method: "POST", body: JSON.stringify(content) });

start().catch(async (error) => {
  showError(error);
  if (location.search.includes("self-test")) await post({ mismatch: error.message });
});
