"""The checkpoint itself as the reference of a report, run layer by layer."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.families.layered import LayerwiseExecutor
from wiola_export.source import Model
from wiola_export.weights import StoredWeight, whole


def reference_logits(
    model: Model, windows: NDArray[np.int64], batch: int
) -> Iterator[NDArray[np.float32]]:
    """Yield logits (B, T, V) of consecutive groups of `batch` windows of (W, T).

    Weights are rounded to float16 and computed with in float32.

    One layer's weights are in memory at a time, with the hidden states of all windows.
    """
    shapes = model.config.tensor_shapes()

    def read(name: str) -> Tensor:
        weight = StoredWeight(model.weights, name, shapes[name], model.config.reordered(name))
        return torch.from_numpy(whole(weight)).half().float()

    def empty_states(batch: int) -> Sequence[Tensor]:
        sizes = {"B": batch, "P": 0}
        return [
            torch.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in state.axes])
            for state in model.config.states()
        ]

    with torch.device("meta"):
        skeleton = model.family.build_model(model.config).eval()
    return LayerwiseExecutor(skeleton, read, empty_states).logits(windows, batch)
