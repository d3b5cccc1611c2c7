"""A bigram model of the training texts, which a trained model must beat.

P(w | v) is the relative frequency of w behind v, interpolated with add-one unigrams by Witten and
Bell's weights: a word v with many different followers leaves more to the unigrams.

Axes: W windows, T tokens of a window, V vocabulary.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from corpus import training_ids, validation_windows
from numpy.typing import NDArray
from tokenizers import Tokenizer


class Bigram:
    """Counts of one row of token ids."""

    def __init__(self, ids: NDArray[np.int64], vocab_size: int) -> None:
        counts = np.zeros((vocab_size, vocab_size), np.int32)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
        self._counts = counts
        self._totals = counts.sum(1)
        self._followers = (counts > 0).sum(1)
        unigrams = np.bincount(ids, minlength=vocab_size) + 1.0
        self._unigrams = unigrams / unigrams.sum()

    def perplexity(self, windows: NDArray[np.int64]) -> float:
        """Predict every token but the first of windows (W, T), and return the perplexity."""
        before, after = windows[:, :-1].ravel(), windows[:, 1:].ravel()
        seen = self._counts[before, after]
        reserved = self._followers[before] * self._unigrams[after]
        probability = (seen + reserved) / np.maximum(self._totals + self._followers, 1)[before]
        unseen = self._totals[before] == 0
        probability = np.where(unseen, self._unigrams[after], probability)
        return math.exp(-np.log(probability).mean())


def main() -> None:
    """Print the perplexity of the packaged validation texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", type=Path, help="texts to train on, UTF-8")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    model = Bigram(training_ids(arguments.texts, tokenizer), tokenizer.get_vocab_size())
    windows = validation_windows(tokenizer)
    for name, found in (*windows.items(), ("both", np.concatenate(list(windows.values())))):
        print(f"{name} {model.perplexity(found):.2f}")


if __name__ == "__main__":
    main()
