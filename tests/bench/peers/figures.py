"""What every peer does: the workload of `wiola-export bench`, written once for all engines.

An engine is a function `reply(tokens, new_tokens)` that takes the likeliest tokens and returns when
each of them was there.
"""

import json
import time
from pathlib import Path

import numpy as np


def by_steps(engine):
    """Make the function of an engine that is asked for one token at a time.

    Both of its methods return the likeliest next token: `prefill(tokens)` begins a text,
    `step(token)` goes on with it.
    """

    def reply(tokens, new_tokens):
        token = engine.prefill(tokens)
        times = [time.perf_counter()]
        while len(times) < new_tokens:
            token = engine.step(token)
            times.append(time.perf_counter())
        return times

    return reply


def measure(workload, reply, *, vocab_size, **told):
    """Print the figures as JSON: what is measured here, and what else an engine told."""

    def prompt(length):
        rng = np.random.default_rng(0)
        return [int(i) for i in rng.integers(3, vocab_size, length)]

    def timed(length, new_tokens):
        """Return seconds to the first token and tokens a second after it."""
        tokens = prompt(length)
        began = time.perf_counter()
        times = reply(tokens, new_tokens)
        rest = times[-1] - times[0]
        return times[0] - began, (new_tokens - 1) / rest if rest else 0.0

    length, depth = workload["prompt_tokens"], workload["depth_tokens"]
    timed(length, 1)
    ready_at = time.time()
    first, _ = timed(length, 1)
    _, decode = timed(length, 1 + workload["reply_tokens"])
    memory = peak_memory_bytes()
    timed(workload["prefill_tokens"], 1)
    seconds, _ = timed(workload["prefill_tokens"], 1)
    deep = timed(depth, 1 + workload["deep_reply_tokens"])[1] if depth else None
    figures = {
        **told,
        "verify_seconds": None,
        "first_token_seconds": first,
        "decode_tokens_per_second": decode,
        "deep_tokens_per_second": deep,
        "prefill_tokens_per_second": workload["prefill_tokens"] / seconds,
        "ready_at": ready_at,
        "memory_bytes": memory,
    }
    print(json.dumps(figures))


def peak_memory_bytes():
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
