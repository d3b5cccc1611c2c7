/** Read, check and open a bundle's folder with ONNX Runtime for Node.js. */

import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { pipeline } from "node:stream/promises";

import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-node";

import { Decoder } from "./decoder.mjs";
import { checkManifest } from "./manifest.mjs";

/**
 * Open a bundle.
 * @param {string} folder
 * @param {{threads?: number}} [options] threads of one matrix product; 0 lets ONNX Runtime count
 * @returns {Promise<{manifest: import("./manifest.mjs").Manifest, decoder: Decoder, tokenizer: Tokenizer}>}
 */
export async function openBundle(folder, { threads = 0 } = {}) {
  const manifest = await readManifest(folder);
  checkManifest(manifest, ort.env.versions.node);
  for (const [name, spec] of Object.entries(manifest.files)) await checkFile(folder, name, spec);
  const session = await ort.InferenceSession.create(join(folder, manifest.graph.file), {
    executionProviders: ["cpu"],
    intraOpNumThreads: threads,
    logSeverityLevel: 3, // errors
    extra: {
      session: {
        // Exact 8-bit products on x86-64 processors that would add them in 16 bits.
        x64quantprecision: "1",
        // Idle threads sleep, so that they do not take the processor from others.
        intra_op: { allow_spinning: "0" },
      },
    },
  });
  return {
    manifest,
    decoder: new Decoder(ort, session, manifest, { inPlace: true }),
    tokenizer: new Tokenizer(await readJson(join(folder, "tokenizer.json")), {}),
  };
}

async function readManifest(folder) {
  const path = join(folder, "manifest.json");
  if (!(await isFile(path))) throw new Error(`${path} not found; is ${folder} an exported bundle?`);
  try {
    return await readJson(path);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new Error(`${path} is not readable JSON (${error.message}); export again`);
  }
}

/** Check size and SHA-256 of one file. */
async function checkFile(folder, name, { size_bytes: size, sha256 }) {
  if (basename(name) !== name || name === "..") throw new Error(`${name} is no bare file name`);
  const path = join(folder, name);
  if (!(await isFile(path))) throw new Error(`${path} not found; copy the bundle again`);
  const found = (await stat(path)).size;
  if (found !== size) throw new Error(`${path} has ${found} bytes, the manifest says ${size}`);
  const hash = createHash("sha256");
  await pipeline(createReadStream(path), hash);
  if (hash.digest("hex") !== sha256) throw new Error(`${path} is not the file that was exported`);
}

const isFile = async (path) => (await stat(path).catch(() => null))?.isFile() ?? false;
const readJson = async (path) => JSON.parse(await readFile(path, "utf8"));
