"""The checkpoint itself, run layer by layer: the reference of a report, and what is calibrated.

Axes: W windows, B windows of a group, T tokens of a window, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.families.layerwise import LayerwiseExecutor, ReadWeight
from wiola_export.source import Model
from wiola_export.weights import whole


def reference_logits(
    model: Model, windows: NDArray[np.int64], batch: int, *, as_stored: bool = False
) -> Iterator[NDArray[np.float32]]:
    """Yield logits (B, T, V) of consecutive groups of `batch` windows of (W, T).

    Weights are rounded to float16, or taken as they are stored, and computed with in float32.

    One layer's weights are in memory at a time, with the hidden states of all windows.
    """

    def read(name: str) -> Tensor:
        stored = read_tensor(model, name)
        return stored if as_stored else stored.half().float()

    return open_executor(model, read).logits(windows, batch)


def open_executor(model: Model, read: ReadWeight) -> LayerwiseExecutor:
    """Return an executor of a model's layers whose weights come from `read`."""

    def empty_states(batch: int) -> Sequence[Tensor]:
        sizes = {"B": batch, "P": 0}
        return [
            torch.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in state.axes])
            for state in model.config.states()
        ]

    with torch.device("meta"):
        skeleton = model.family.build_model(model.config).eval()
    return LayerwiseExecutor(skeleton, read, empty_states)


def read_tensor(model: Model, name: str) -> Tensor:
    """Read a tensor of the checkpoint as float32, its heads in the order of the graph."""
    return torch.from_numpy(whole(model.weight(name)))
