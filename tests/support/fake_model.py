"""A model small enough to see through: a table of next-token logits, plus its position."""

import numpy as np


class TableModel:
    """Logits of a token are its row of a random table, tilted by the position."""

    def __init__(self, *, vocabulary=50, seed=0, scale=4.0, noise=0.0):
        table = np.random.default_rng(seed).standard_normal((vocabulary, vocabulary))
        error = np.random.default_rng(seed + 1).standard_normal((vocabulary, vocabulary))
        self.table = (scale * table + noise * error).astype(np.float32)
        self.calls = []

    def logits(self, ids):
        self.calls.append(ids.shape)
        tilt = np.linspace(0.5, 1.5, ids.shape[-1], dtype=np.float32)
        return self.table[ids] * tilt[:, None]
