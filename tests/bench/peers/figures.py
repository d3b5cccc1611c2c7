"""What every peer does: the workload of `wiola-export bench`, written once for all engines.

An engine is two functions, both of which return the likeliest next token: `prefill(tokens)` begins
a text, `step(token)` goes on with it.
"""

import json
import time
from pathlib import Path

import numpy as np


def measure(workload, engine, *, vocab_size, load_seconds, weight_bytes, versions):
    """Print the figures as JSON."""

    def prompt(length):
        rng = np.random.default_rng(0)
        return [int(i) for i in rng.integers(3, vocab_size, length)]

    def reply(length, new_tokens):
        """Return seconds to the first token and tokens a second after it."""
        began = time.perf_counter()
        token = engine.prefill(prompt(length))
        first = time.perf_counter()
        for _ in range(new_tokens - 1):
            token = engine.step(token)
        rest = time.perf_counter() - first
        return first - began, (new_tokens - 1) / rest if new_tokens > 1 else 0.0

    length, depth = workload["prompt_tokens"], workload["depth_tokens"]
    reply(length, 1)
    ready_at = time.time()
    first, _ = reply(length, 1)
    _, decode = reply(length, 1 + workload["reply_tokens"])
    memory = peak_memory_bytes()
    reply(workload["prefill_tokens"], 1)
    seconds, _ = reply(workload["prefill_tokens"], 1)
    deep = reply(depth, 1 + workload["deep_reply_tokens"])[1] if depth else None
    figures = {
        "load_seconds": load_seconds,
        "verify_seconds": None,
        "first_token_seconds": first,
        "decode_tokens_per_second": decode,
        "deep_tokens_per_second": deep,
        "prefill_tokens_per_second": workload["prefill_tokens"] / seconds,
        "ready_at": ready_at,
        "memory_bytes": memory,
        "weight_bytes": weight_bytes,
        "versions": versions,
    }
    print(json.dumps(figures))


def peak_memory_bytes():
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
