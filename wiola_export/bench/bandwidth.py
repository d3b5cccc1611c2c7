"""How fast this machine reads its memory: what bounds a decoding step of any engine."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

BYTES = 256 << 20  # larger than the caches
REPEATS = 5


def read_bandwidth(threads: int) -> float:
    """Return bytes per second that so many threads read together: the best of some tries.

    numpy's OR over 64-bit words is the plainest loop there is, and releases the interpreter.
    """
    parts = np.array_split(np.zeros(BYTES // 8, np.uint64), threads)
    for part in parts:
        part.fill(1)  # touched: an untouched page is not in memory
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(REPEATS):
            began = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = min(best, time.perf_counter() - began)
    return BYTES / best
