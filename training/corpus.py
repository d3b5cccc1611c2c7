"""Texts to train on, as one row of token ids, and the windows to measure on.

Axes: W windows, T tokens of a window.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wiola_calibration import PACKAGED, pack_all, packaged_text

BOS, EOS = 1, 2
PARAGRAPHS = 12  # of a document
CONTEXT = 256
VALID_WINDOWS = 32  # of each text, as in a bundle's report


def training_ids(paths: list[Path], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the documents of all files, each between a start and an end token."""
    ids: list[int] = []
    for path in paths:
        paragraphs = path.read_text("utf-8").splitlines()
        for start in range(0, len(paragraphs), PARAGRAPHS):
            document = "\n".join(paragraphs[start : start + PARAGRAPHS]) + "\n"
            ids += [BOS, *_encode(tokenizer, document), EOS]
    return np.array(ids)


def validation_windows(tokenizer: Tokenizer) -> dict[str, NDArray[np.int64]]:
    """Return windows (W, T) of the packaged validation texts, by name."""
    return {
        name: pack_all(
            [packaged_text(name)],
            lambda text: _encode(tokenizer, text),
            context=CONTEXT,
            max_windows=VALID_WINDOWS,
            bos_id=BOS,
        ).windows
        for name in sorted(PACKAGED)
    }


def shuffled_windows(ids: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Cut the row of ids at another offset each epoch, and mix the windows (W, T)."""
    generator = np.random.default_rng([seed, epoch])
    offset = int(generator.integers(CONTEXT))
    count = (len(ids) - offset) // CONTEXT
    windows = ids[offset : offset + count * CONTEXT].reshape(count, CONTEXT)
    return generator.permutation(windows)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
