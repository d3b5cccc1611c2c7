/** What the command line asks for. */

import { parseArgs } from "node:util";

export const USAGE = `usage: node generate.mjs BUNDLE --prompt TEXT [--max-new-tokens N] [--threads N]
       node generate.mjs BUNDLE --self-test [--json] [--threads N]`;
export const HELP = `${USAGE}

  BUNDLE              folder that wiola-export wrote
  --prompt TEXT       text to continue with the most likely tokens
  --max-new-tokens N  longest reply; default: 64
  --self-test         compare this machine with the exporting one
  --json              print what the self-test found as JSON
  --threads N         threads of one matrix product; default: 0, ONNX Runtime counts the cores`;

const MAX_THREADS = 1024; // beyond any machine that runs such a model
const OPTIONS = {
  help: { type: "boolean", short: "h" },
  prompt: { type: "string" },
  "max-new-tokens": { type: "string" },
  "self-test": { type: "boolean" },
  json: { type: "boolean" },
  threads: { type: "string" },
};

/**
 * @typedef {object} Arguments
 * @property {string} folder the bundle's
 * @property {string | undefined} prompt undefined where the self-test is wanted
 * @property {number} maxNewTokens
 * @property {boolean} asJson
 * @property {number} threads
 */

/**
 * Read a command line.
 * @param {string[]} words those after the program's name
 * @returns {Arguments | null} null where help is wanted
 * @throws {Error} an option is unknown, out of range or without effect, or one is missing
 */
export function readArguments(words) {
  const { values, positionals } = parseArgs({
    args: words,
    allowPositionals: true,
    options: OPTIONS,
  });
  if (values.help) return null;
  const { prompt, json: asJson = false, "self-test": isSelfTest = false } = values;
  if (positionals.length !== 1 || isSelfTest === Boolean(prompt)) throw new Error(USAGE);
  if (asJson && !isSelfTest) throw new Error("--json has no effect without --self-test");
  if (isSelfTest && values["max-new-tokens"] !== undefined) {
    throw new Error("--max-new-tokens has no effect on --self-test; leave it out");
  }
  return {
    folder: positionals[0],
    prompt,
    maxNewTokens: wholeNumber("--max-new-tokens", values["max-new-tokens"] ?? "64", Infinity),
    asJson,
    threads: wholeNumber("--threads", values.threads ?? "0", MAX_THREADS),
  };
}

function wholeNumber(option, text, most) {
  const range = most === Infinity ? "of 0 or more" : `from 0 to ${most}`;
  if (!/^\d+$/.test(text) || Number(text) > most) {
    throw new Error(`${option} is ${JSON.stringify(text)}; expected a whole number ${range}`);
  }
  return Number(text);
}
