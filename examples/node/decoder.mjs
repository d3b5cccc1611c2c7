/**
 * Drive an exported bundle from its manifest alone, on any ONNX Runtime with JavaScript's API.
 *
 * Axes: T new tokens of a call, R positions that return logits, V vocabulary, C capacity of a
 * shared cache, P tokens already cached. One row: B is 1.
 */

import { nameOf } from "./manifest.mjs";

const FIRST_CAPACITY = 256;
const ARRAYS = {
  float32: Float32Array,
  float16: Uint16Array, // its bits; only zeros are ever written here
  int8: Int8Array,
};

/**
 * @typedef {import("onnxruntime-common").Tensor} Tensor
 * @typedef {import("onnxruntime-common").InferenceSession} Session
 * @typedef {import("./manifest.mjs").Manifest} Manifest
 * @typedef {import("./manifest.mjs").StateSpec} StateSpec
 */

/** One row of a model: new tokens go in, logits come out, the state stays inside. */
export class Decoder {
  #ort;
  #session;
  #manifest;
  #inPlace;
  #names;
  #capacity = 0;
  /** @type {Map<string, Tensor>} the next call's `past` tensors by input name */
  #past = new Map();

  /** Tokens that the row holds. */
  length = 0;

  /**
   * @param {typeof import("onnxruntime-common")} ort `onnxruntime-node` or `onnxruntime-web`
   * @param {Session} session the opened graph
   * @param {Manifest} manifest the parsed `manifest.json`
   * @param {{inPlace?: boolean}} [options] whether a shared cache is written where it lies; without
   *   it the graph returns a copy at each call, which every build of ONNX Runtime can do
   */
  constructor(ort, session, manifest, { inPlace = false } = {}) {
    this.#ort = ort;
    this.#session = session;
    this.#manifest = manifest;
    this.#inPlace = inPlace && manifest.cache === "shared";
    this.#names = {
      tokenIds: nameOf(manifest.inputs, "token_ids"),
      pastLengths: nameOf(manifest.inputs, "past_lengths"),
      positions: nameOf(manifest.inputs, "output_positions"),
      logits: nameOf(manifest.outputs, "logits"),
    };
    this.reset();
  }

  /** Forget every token. */
  reset() {
    this.length = 0;
    this.#capacity = this.#manifest.cache === "shared" ? this.#capacityFor(1) : 0;
    for (const spec of this.#manifest.states) this.#past.set(spec.past, this.#zeros(spec));
  }

  /**
   * Feed new tokens behind those that the row holds.
   * @param {number[]} tokenIds the T new tokens, at least one
   * @param {number[]} [positions] the R of them whose logits are wanted; by default the last
   * @returns {Promise<Float32Array[]>} R arrays of V logits
   * @throws {RangeError} the context is too short; the row is as before
   */
  async run(tokenIds, positions = [tokenIds.length - 1]) {
    this.#reserve(this.length + tokenIds.length);
    const feeds = {
      [this.#names.tokenIds]: this.#int64(tokenIds, [1, tokenIds.length]),
      [this.#names.pastLengths]: this.#int64([this.length], [1]),
      [this.#names.positions]: this.#int64(positions, [positions.length]),
      ...Object.fromEntries(this.#past),
    };
    const results = await this.#session.run(feeds, this.#fetches());
    for (const { past, present, kind } of this.#manifest.states) {
      if (!this.#isBound(kind)) this.#past.set(past, results[present]);
    }
    this.length += tokenIds.length;
    return rowsOf(results[this.#names.logits]);
  }

  /** What is to be returned, and for a cache that is written in place, where to. */
  #fetches() {
    const fetches = { [this.#names.logits]: null };
    for (const { past, present, kind } of this.#manifest.states) {
      fetches[present] = this.#isBound(kind) ? this.#past.get(past) : null;
    }
    return fetches;
  }

  #isBound(kind) {
    return this.#inPlace && kind === "cache";
  }

  /** Make room for `total` tokens. */
  #reserve(total) {
    const wanted = this.#capacityFor(total);
    if (this.#manifest.cache === "growing" || wanted <= this.#capacity) return;
    this.#capacity = wanted;
    for (const spec of this.#manifest.states.filter(({ kind }) => kind === "cache")) {
      const larger = this.#zeros(spec);
      copyCorner(this.#past.get(spec.past), larger, spec.axes.indexOf("C"));
      this.#past.set(spec.past, larger);
    }
  }

  /** The capacity for so many tokens: a power of two, at most the context. */
  #capacityFor(tokens) {
    const context = this.#manifest.context_length;
    if (tokens > context) {
      throw new RangeError(`${tokens} tokens do not fit the context of ${context}`);
    }
    let capacity = FIRST_CAPACITY;
    while (capacity < tokens) capacity *= 2;
    return Math.min(capacity, context);
  }

  /** @param {StateSpec} spec */
  #zeros({ dtype, axes }) {
    const sizes = { B: 1, C: this.#capacity, P: 0 };
    const dims = axes.map((axis) => (typeof axis === "number" ? axis : sizes[axis]));
    return new this.#ort.Tensor(dtype, new ARRAYS[dtype](product(dims)), dims);
  }

  #int64(numbers, dims) {
    return new this.#ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), dims);
  }
}

/**
 * Continue a prompt token by token. Where a reply ends is the caller's business.
 * @param {Decoder} decoder
 * @param {number[]} promptIds
 * @param {number} maxNewTokens
 * @param {(logits: Float32Array) => number} [pick] chooses a token; by default the most likely
 * @returns {AsyncGenerator<number>}
 */
export async function* generate(decoder, promptIds, maxNewTokens, pick = argmax) {
  let pending = promptIds;
  for (let count = 0; count < maxNewTokens; count += 1) {
    const [logits] = await decoder.run(pending);
    const tokenId = pick(logits);
    yield tokenId;
    pending = [tokenId];
  }
}

/** @param {Float32Array} logits */
export function argmax(logits) {
  let best = 0;
  for (let id = 1; id < logits.length; id += 1) if (logits[id] > logits[best]) best = id;
  return best;
}

/** @param {readonly number[]} dims */
const product = (dims) => dims.reduce((total, size) => total * size, 1);

/** Split logits (1, R, V) into R views. */
function rowsOf({ data, dims: [, rows, width] }) {
  return Array.from({ length: rows }, (_, row) => data.subarray(row * width, (row + 1) * width));
}

/** Copy a tensor into the corner of one that is larger along one axis. */
function copyCorner(from, to, axis) {
  const inner = (tensor) => product(tensor.dims.slice(axis));
  for (let block = 0; block < product(from.dims.slice(0, axis)); block += 1) {
    const start = block * inner(from);
    to.data.set(from.data.subarray(start, start + inner(from)), block * inner(to));
  }
}
