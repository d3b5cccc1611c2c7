/**
 * Generate text from a bundle, or run its self-test.
 *
 *   node generate.mjs BUNDLE --prompt "It is a truth" --max-new-tokens 64
 *   node generate.mjs BUNDLE --self-test
 */

import { parseArgs } from "node:util";

import { openBundle } from "./bundle.mjs";
import { generate } from "./decoder.mjs";
import { selfTest } from "./self-test.mjs";
import { TextStream } from "./text-stream.mjs";

const USAGE = "usage: node generate.mjs BUNDLE (--prompt TEXT [--max-new-tokens N] | --self-test)";

/** Print the self-test's result as one line of JSON; exit code 1 where something differs. */
async function runSelfTest({ manifest, decoder }) {
  if (manifest.self_test === null) throw new Error(`${manifest.name} carries no self-test`);
  const result = await selfTest(decoder, manifest.self_test);
  console.log(JSON.stringify(result));
  if (result.mismatch === null) return;
  console.error(`self-test: ${result.mismatch}`);
  process.exitCode = 1;
}

/** Print a reply as it comes; the speed of its steps goes to standard error. */
async function runPrompt({ manifest, decoder, tokenizer }, prompt, maxNewTokens) {
  const stream = new TextStream(tokenizer);
  const ends = new Set(manifest.tokens.eos_ids);
  let started = 0;
  let count = 0;
  for await (const tokenId of generate(decoder, tokenizer.encode(prompt).ids, maxNewTokens)) {
    if (count === 0) started = performance.now(); // the prompt's own time is not the steps'
    if (ends.has(tokenId)) break;
    count += 1;
    process.stdout.write(stream.push(tokenId));
  }
  process.stdout.write(`${stream.flush()}\n`);
  const seconds = (performance.now() - started) / 1000;
  if (count > 1) console.error(`${((count - 1) / seconds).toFixed(1)} tokens a second`);
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      prompt: { type: "string" },
      "max-new-tokens": { type: "string", default: "64" },
      "self-test": { type: "boolean", default: false },
      threads: { type: "string", default: "0" },
    },
  });
  const isComplete = values["self-test"] || values.prompt;
  if (positionals.length !== 1 || !isComplete) throw new Error(USAGE);
  const bundle = await openBundle(positionals[0], { threads: Number(values.threads) });
  if (values["self-test"]) await runSelfTest(bundle);
  else await runPrompt(bundle, values.prompt, Number(values["max-new-tokens"]));
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 2;
});
