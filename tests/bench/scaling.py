"""How speed and memory go with context, batch and prompt: python scaling.py BUNDLE > scaling.json.

Medians of 3 on one machine with nothing else to do; plot_scaling.py draws them.
"""

import json
import sys
from pathlib import Path
from statistics import median

import numpy as np

import wiola_runtime as wr
from wiola_export.evaluate.machine import this_machine
from wiola_runtime.devices import default_threads

REPEATS = 3
BATCHES = (1, 2, 4, 8, 16)
PROMPTS = (16, 32, 64, 128, 256, 512, 1024, 2048)
DEEP_TOKENS = 32


def main(bundle):
    with wr.load(bundle, verify=False) as model:
        context = model.manifest.context_length
        depths = [*range(0, context - DEEP_TOKENS, context // 8), context - DEEP_TOKENS - 1]
        prompts = [min(length, context - 1) for length in PROMPTS if length <= context]
        found = {
            "bundle": model.manifest.name,
            "cpu": this_machine().cpu,
            "threads": default_threads(),
            "memory_bytes": [[depth, memory(model, depth)] for depth in depths],
            "prefill_tokens_per_second": [[n, prefill(model, n)] for n in prompts],
            "decode_tokens_per_second": [[depth, decode(model, depth)] for depth in depths],
            "batch_tokens_per_second": [[rows, batch(model, rows)] for rows in BATCHES],
        }
    print(json.dumps(found, indent=1))


def prefill(model, length):
    def once():
        return model.generate(tokens(model, length), new(1)).timings.prefill_tokens_per_second

    return median_of(once)


def decode(model, depth):
    def once():
        prompt = tokens(model, max(depth, 1))
        return model.generate(prompt, new(1 + DEEP_TOKENS)).timings.decode_tokens_per_second

    return median_of(once)


def batch(model, rows):
    """Return the tokens a second of all rows together, behind 64 tokens each."""

    def once():
        prompts = [tokens(model, 64, seed) for seed in range(rows)]
        replies = model.generate(prompts, new(1 + DEEP_TOKENS))
        return rows * DEEP_TOKENS / max(reply.timings.decode_seconds for reply in replies)

    return median_of(once)


def memory(model, depth):
    """Return the memory of the process while it holds a text of some length; growing ones first."""
    session = model.session()
    session.append(tokens(model, max(depth, 1)))
    session.generate(config=new(1))
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def median_of(once):
    once()
    return median(once() for _ in range(REPEATS))


def tokens(model, length, seed=0):
    rng = np.random.default_rng(seed)
    return [int(i) for i in rng.integers(0, model.manifest.vocab_size, length)]


def new(count):
    return wr.GenerationConfig(max_new_tokens=count, ignore_eos=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
