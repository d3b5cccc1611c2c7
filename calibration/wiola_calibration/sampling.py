"""Cut a stream of tokens into windows, and keep a uniform sample of them.

Axes: W windows, T tokens of a window (the context).
"""

import dataclasses
import hashlib
import heapq
import operator
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_calibration.errors import CorpusError
from wiola_calibration.packing import MIN_CONTEXT

PRIORITY_BYTES = 16
Window = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which windows are wanted.

    Attributes:
        context: Tokens of a window.
        max_windows: Limit, which also bounds memory.
        seed: Chooses among the windows where there are more.

    Raises:
        CorpusError: A number is out of range.
    """

    context: int
    max_windows: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.context < MIN_CONTEXT:
            raise CorpusError(
                f"context is {self.context}; a window needs at least {MIN_CONTEXT} tokens"
            )
        if self.max_windows < 1:
            raise CorpusError(f"max_windows is {self.max_windows}; use at least 1 window")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Windows (W, T) in the order of the text, and what was found.

    Attributes:
        found: Windows that the text fills.
        remainder: Tokens at the end that fill no window.
    """

    windows: NDArray[np.int64]
    found: int
    remainder: int


def sample_windows(pieces: Iterable[Sequence[int]], sampling: Sampling) -> Sample:
    """Cut tokens into windows without overlap and keep at most `max_windows` of them.

    Each window has a priority, a hash of the seed and its number; the lowest are kept. So every
    choice is equally likely, the same in every version of every library, and a larger limit
    keeps what a smaller one does. Memory is bounded by the limit and the longest piece.
    """
    kept: list[tuple[int, int, Window]] = []  # a heap: the highest priority leaves first
    found = remainder = 0
    for window in _cut(pieces, sampling.context):
        if len(window) < sampling.context:
            remainder = len(window)
            break
        # A copy, since a view would hold the whole piece that the window was cut from.
        entry = (-_priority(sampling.seed, found), found, window.copy())
        push = heapq.heappush if len(kept) < sampling.max_windows else heapq.heappushpop
        push(kept, entry)
        found += 1
    kept.sort(key=operator.itemgetter(1))
    windows = np.empty((len(kept), sampling.context), dtype=np.int64)
    for row, (_, _, window) in zip(windows, kept, strict=True):
        row[:] = window
    return Sample(windows=windows, found=found, remainder=remainder)


def _cut(pieces: Iterable[Sequence[int]], context: int) -> Iterator[Window]:
    """Yield windows; the last one is short, perhaps empty."""
    ids: list[int] = []
    for piece in pieces:
        ids.extend(piece)
        if len(ids) < context:
            continue
        whole = len(ids) - len(ids) % context
        yield from np.array(ids[:whole], dtype=np.int64).reshape(-1, context)
        del ids[:whole]
    yield np.array(ids, dtype=np.int64)


def _priority(seed: int, number: int) -> int:
    key = f"{seed}:{number}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=PRIORITY_BYTES).digest(), "big")
