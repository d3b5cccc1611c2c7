/** Does this machine compute what the machine computed that wrote the bundle? */

import { argmax, generate } from "./decoder.mjs";

/**
 * Run the manifest's self-test.
 *
 * The logits come from one pass over prompt and reply, the tokens from the decoding loop. Where
 * the two best logits are closer than twice the tolerance, either token is right, and from there
 * on the replies may differ.
 * @param {import("./decoder.mjs").Decoder} decoder
 * @param {import("./manifest.mjs").Golden} golden
 * @returns {Promise<{tokenIds: number[], maxDifference: number, mismatch: string | null}>}
 */
export async function selfTest(decoder, golden) {
  const { prompt_ids: prompt, token_ids: reply, tolerance } = golden;
  const all = [...prompt, ...reply];
  decoder.reset();
  const logits = await decoder.run(all, [...all.keys()]);
  decoder.reset();
  const tokenIds = [];
  for await (const tokenId of generate(decoder, prompt, reply.length)) tokenIds.push(tokenId);
  const maxDifference = Math.max(...golden.logits.map((point) => differenceOf(point, logits)));
  // Written so that a logit that is no number is a mismatch too.
  const far = !(maxDifference <= tolerance);
  const mismatch = far
    ? `a logit is off by ${maxDifference.toPrecision(3)}, the bundle allows ${tolerance}`
    : otherToken(tokenIds, reply, logits.slice(prompt.length - 1), tolerance);
  return { tokenIds, maxDifference, mismatch };
}

function differenceOf({ position, token_ids: ids, values }, logits) {
  return Math.max(...ids.map((id, index) => Math.abs(logits[position][id] - values[index])));
}

/** Say which token differs, unless it is a tie; null where none does. */
function otherToken(decoded, expected, logits, tolerance) {
  const isWrong = (at, id) => id !== expected[at] && !isTie(logits[at], expected[at], tolerance);
  const best = logits.slice(0, expected.length).map(argmax);
  const split = expected.findIndex((id, at) => id !== decoded[at]);
  const found = split >= 0 && isWrong(split, decoded[split]) ? decoded : best;
  const at = found === decoded ? split : best.findIndex((id, index) => isWrong(index, id));
  return at < 0
    ? null
    : `token ${at} of the reply is ${found[at]}, the bundle says ${expected[at]}`;
}

function isTie(row, expected, tolerance) {
  const best = argmax(row);
  const second = argmax(row.map((value, id) => (id === best ? -Infinity : value)));
  return row[best] - row[second] < 2 * tolerance && row[expected] >= row[second];
}
