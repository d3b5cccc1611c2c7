"""Find what calibration windows share with the texts that accuracy is measured on.

Two texts share a passage where the same N tokens follow each other in both. Only the windows that
are used can flatter a measurement, so only they are looked at: their passages are held as hashes
of 64 bits, and the other texts stream past. Memory does not depend on the length of either.

Axes: W windows, T tokens of a window, N tokens of a passage.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_calibration.corpus import Text
from wiola_calibration.tokenization import Tokenization

PASSAGE_TOKENS = 13
# Odd, without pattern: the multiplier of a polynomial hash modulo 2**64.
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What the used windows share with the texts to measure on.

    Attributes:
        texts: Names of those texts.
        passage_tokens: Tokens of a passage, N: 13, or the context where that is shorter.
        windows: Windows with at least one shared passage.
        tokens: Tokens of the windows that lie in a shared passage.
        share: Those tokens over all tokens of the windows.
    """

    texts: tuple[str, ...]
    passage_tokens: int
    windows: int
    tokens: int
    share: float


def find_overlap(
    windows: NDArray[np.int64], texts: Sequence[Text], tokenization: Tokenization
) -> Overlap:
    """Compare windows (W, T), at least one, with the whole of each text.

    Raises:
        CorpusError: A text cannot be read.
    """
    length = min(PASSAGE_TOKENS, windows.shape[1])
    known, place = np.unique(_hashes(windows, length), return_inverse=True)
    shared = np.zeros(len(known), dtype=np.bool_)
    for text in texts:
        for ids in _chunks(text, tokenization, length):
            hashes = _hashes(ids, length)
            nearest = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            shared[nearest[known[nearest] == hashes]] = True
    begins = shared[place].reshape(len(windows), -1)  # (W, T - N + 1)
    covered = np.zeros(windows.shape, dtype=np.bool_)
    for offset in range(length):
        covered[:, offset : offset + begins.shape[1]] |= begins
    return Overlap(
        texts=tuple(text.name for text in texts),
        passage_tokens=length,
        windows=int(begins.any(axis=1).sum()),
        tokens=int(covered.sum()),
        share=float(covered.mean()),
    )


def _chunks(text: Text, tokenization: Tokenization, length: int) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of a text in parts that repeat the end of the part before."""
    ids: list[int] = []
    for piece in text.pieces():
        ids.extend(tokenization.content(piece))
        if len(ids) >= length:
            yield np.array(ids, dtype=np.int64)
            del ids[: len(ids) - length + 1]


def _hashes(ids: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    """Hash every `length` tokens (..., T) that follow each other: (..., T - N + 1)."""
    count = ids.shape[-1] - length + 1
    digits = ids.astype(np.uint64)
    total = np.zeros((*ids.shape[:-1], count), dtype=np.uint64)
    for offset in range(length):
        total = total * MULTIPLIER + digits[..., offset : offset + count]
    return total
