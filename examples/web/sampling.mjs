/** Choose a token from logits. */

import { argmax } from "../node/decoder.mjs";

/**
 * @param {number} temperature 0 takes the most likely token, 1 draws as the model's chances are
 * @param {() => number} [random] a number from 0 to 1
 * @returns {(logits: Float32Array) => number}
 */
export function picker(temperature, random = Math.random) {
  return temperature > 0 ? (logits) => draw(logits, temperature, random()) : argmax;
}

/** Draw from softmax(logits / temperature). */
function draw(logits, temperature, chance) {
  const highest = logits[argmax(logits)];
  const weights = logits.map((logit) => Math.exp((logit - highest) / temperature));
  let left = chance * weights.reduce((total, weight) => total + weight, 0);
  const found = weights.findIndex((weight) => (left -= weight) < 0);
  return found < 0 ? argmax(logits) : found;
}
