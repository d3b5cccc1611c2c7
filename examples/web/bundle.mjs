/** Fetch, check and open a bundle with ONNX Runtime for the web. */

import { Decoder } from "../node/decoder.mjs";
import { checkManifest } from "../node/manifest.mjs";
import { Tokenizer } from "./node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs";
import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";

ort.env.wasm.proxy = true; // computes in a worker, so that the page answers meanwhile
ort.env.logLevel = "error";

/**
 * Open a bundle.
 * @param {URL} folder its address, ending in a slash
 * @param {{threads: number, onProgress: (loaded: number, total: number) => void}} options threads
 *   of one matrix product, and who is told the bytes that have come
 * @returns {Promise<{manifest: import("../node/manifest.mjs").Manifest, decoder: Decoder, tokenizer: Tokenizer}>}
 */
export async function openBundle(folder, { threads, onProgress }) {
  ort.env.wasm.numThreads = threads;
  const manifest = await (await fetchFile(new URL("manifest.json", folder))).json();
  checkManifest(manifest, ort.env.versions.web);
  const { file: graphFile } = manifest.graph;
  const names = Object.keys(manifest.files).filter(
    (name) => name.startsWith(graphFile) || name === "tokenizer.json",
  );
  const files = await fetchFiles(folder, names, manifest.files, onProgress);
  const externalData = names
    .filter((name) => name.startsWith(graphFile) && name !== graphFile)
    .map((name) => ({ path: name, data: files.get(name) }));
  const tokenizerJson = JSON.parse(new TextDecoder().decode(files.get("tokenizer.json")));
  const session = await ort.InferenceSession.create(files.get(graphFile), {
    executionProviders: ["wasm"],
    externalData,
    // Weights become float32 once, at opening, and not at every step: faster, and more memory.
    extra: { session: { disable_quant_qdq: "1" } },
  });
  return {
    manifest,
    decoder: new Decoder(ort, session, manifest),
    tokenizer: new Tokenizer(tokenizerJson, {}),
  };
}

/** Fetch files one after the other and check them against the manifest. */
async function fetchFiles(folder, names, specs, onProgress) {
  const total = names.reduce((sum, name) => sum + specs[name].size_bytes, 0);
  const files = new Map();
  let before = 0;
  for (const name of names) {
    const response = await fetchFile(new URL(name, folder));
    const bytes = await readAll(response, specs[name].size_bytes, (loaded) =>
      onProgress(before + loaded, total),
    );
    await checkHash(name, bytes, specs[name].sha256);
    files.set(name, bytes);
    before += bytes.length;
  }
  return files;
}

/** Read a body of known size, telling how far it has come. */
async function readAll(response, size, onLoaded) {
  const bytes = new Uint8Array(size);
  let loaded = 0;
  const reader = response.body.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    if (loaded + next.value.length > size)
      throw new Error(`${response.url} is longer than ${size}`);
    bytes.set(next.value, loaded);
    loaded += next.value.length;
    onLoaded(loaded);
  }
  return bytes;
}

async function checkHash(name, bytes, expected) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const found = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== expected) throw new Error(`${name} is not the file that was exported`);
}

async function fetchFile(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.pathname}: ${response.status} ${response.statusText}`);
  return response;
}
