"""Calibrate a whole model: windows in, rounded weights and rescaled vectors out.

Axes: W windows, B windows of a group, T tokens of a window.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.calibrate.hidden import HiddenStates, window_groups
from wiola_export.calibrate.layer import LayerQuantizer, Streams
from wiola_export.calibrate.rescale import note
from wiola_export.families.layerwise import LayerwiseExecutor
from wiola_export.options import Method
from wiola_export.progress import Progress
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.policy import Policy
from wiola_export.quantize.rounding import round_matrix
from wiola_export.quantize.spool import Spool
from wiola_export.reference import open_executor, read_tensor
from wiola_export.source import Model
from wiola_export.weights import Factors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What calibration found.

    Attributes:
        rounded: Rounded weights by tensor name.
        factors: What rows and columns of a tensor are multiplied by before they are stored.
    """

    rounded: Spool
    factors: Mapping[str, Factors]


def calibrate(
    model: Model,
    windows: NDArray[np.int64],
    method: Method,
    policy: Policy,
    folder: Path,
    progress: Progress,
) -> Calibration:
    """Quantize layer after layer, each on the outputs of the already quantized ones.

    Weights of one layer are in memory at a time; hidden states beyond a limit go to files.

    Args:
        model: A checkpoint.
        windows: Token ids (W, T).
        method: How matrices are rounded.
        policy: Which weight is stored how.
        folder: Takes codes and hidden states; the caller removes it.
        progress: Is told what goes on.
    """
    executor = open_executor(model, lambda name: read_tensor(model, name))
    quantizer = LayerQuantizer(method=method, policy=policy, spool=Spool(folder), folder=folder)
    factors: dict[str, Factors] = {}
    with torch.no_grad():
        streams = _embed(executor, windows, policy, folder)
        for layer in progress.track(executor.layers(), executor.num_layers):
            for rescaling, scales in quantizer.quantize(layer, streams):
                note(factors, layer, rescaling, scales)
    return Calibration(rounded=quantizer.spool, factors=factors)


def _embed(
    executor: LayerwiseExecutor, windows: NDArray[np.int64], policy: Policy, folder: Path
) -> Streams:
    """Look the windows up, in the embedding as it will be stored and in the float one."""
    weights = executor.head_weights()
    stored = {name: _stored(name, weight, policy) for name, weight in weights.items()}
    groups = window_groups(windows)

    def states(weights: Mapping[str, Tensor], name: str) -> HiddenStates:
        embedded = (executor.embed(ids, weights) for ids in groups)
        return HiddenStates(embedded, folder / name)

    return Streams(quantized=states(stored, "quantized"), original=states(weights, "original"))


def _stored(name: str, weight: Tensor, policy: Policy) -> Tensor:
    """Round a table to nearest, as the bundle will hold it."""
    if weight.ndim == 1:
        return weight
    form = policy.decide("embedding", weight.shape[1], name).form
    if not isinstance(form, Blocks):
        return weight
    return torch.from_numpy(round_matrix(weight.numpy(), form).matrix(weight.shape[1]))
