/**
 * Generate text from a bundle, or run its self-test.
 *
 *   node generate.mjs BUNDLE --prompt "It is a truth" --max-new-tokens 64
 *   node generate.mjs BUNDLE --self-test
 */

import { HELP, readArguments } from "./arguments.mjs";
import { openBundle } from "./bundle.mjs";
import { generate } from "./decoder.mjs";
import { selfTest } from "./self-test.mjs";
import { TextStream } from "./text-stream.mjs";

/** Say what the self-test found; exit code 1 where something differs. */
async function runSelfTest({ manifest, decoder }, asJson) {
  if (manifest.self_test === null) throw new Error(`${manifest.name} carries no self-test`);
  const result = await selfTest(decoder, manifest.self_test);
  if (asJson) console.log(JSON.stringify(result));
  if (result.mismatch !== null) {
    console.error(`self-test: ${result.mismatch}`);
    process.exitCode = 1;
  } else if (!asJson) {
    const difference = result.maxDifference.toPrecision(3);
    const { tolerance } = manifest.self_test;
    console.log(
      `self-test passed: logits differ by at most ${difference}, the bundle allows ${tolerance}`,
    );
  }
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
  const wanted = readArguments(process.argv.slice(2));
  if (wanted === null) {
    console.log(HELP);
    return;
  }
  const bundle = await openBundle(wanted.folder, { threads: wanted.threads });
  if (wanted.prompt === undefined) await runSelfTest(bundle, wanted.asJson);
  else await runPrompt(bundle, wanted.prompt, wanted.maxNewTokens);
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 2;
});
