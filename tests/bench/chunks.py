"""Read a long prompt in pieces of several lengths, in turns: python chunks.py BUNDLE [ROUNDS].

Printed are medians of tokens a second over 1,920 tokens, or the context if that is shorter, and
the memory that the process had held at most when it first read in pieces of that length.
"""

import sys
import time
from statistics import median

import wiola_runtime as wr
from wiola_export.evaluate.speed_worker import peak_memory_bytes
from wiola_runtime.row import Row

CHUNKS = (64, 128, 256, 512, 1024)
PROMPT_TOKENS = 1920


def main(bundle, rounds="3"):
    model = wr.load(bundle, verify=False)
    length = min(PROMPT_TOKENS, model.manifest.context_length)
    prompt = [(7919 * i) % model.manifest.vocab_size for i in range(length)]
    found = {chunk: [] for chunk in CHUNKS}
    peaks = {}
    for _ in range(int(rounds)):
        for chunk, rates in found.items():
            row = Row(model.engine.graph, chunk)
            began = time.perf_counter()
            row.step(prompt)
            rates.append(length / (time.perf_counter() - began))
            peaks.setdefault(chunk, peak_memory_bytes())
    for chunk, rates in found.items():
        print(f"{chunk}: {median(rates):.0f} tokens/s, peak {peaks[chunk] / 1e6:.0f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
