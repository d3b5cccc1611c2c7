"""Calibrate a whole model: windows in, rounded weights and rescaled vectors out.

Axes: W windows, B windows of a group, T tokens of a window.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.calibrate.hidden import HiddenStates, window_groups
from wiola_export.calibrate.layer import LayerQuantizer, Streams
from wiola_export.calibrate.rescale import note
from wiola_export.calibrate.tables import TableQuantizer
from wiola_export.families.layerwise import LayerwiseExecutor
from wiola_export.options import Method
from wiola_export.progress import Progress
from wiola_export.quantize.policy import Policy
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
        losses: Share of a product's energy that is lost where a kernel rounds its input to 8 bits
            in blocks, by a matrix that reads it; empty where no moments were taken.
    """

    rounded: Spool
    factors: Mapping[str, Factors]
    losses: Mapping[str, float]


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
    spool = Spool(folder)
    tables = TableQuantizer(
        executor=executor, method=method, policy=policy, spool=spool, folder=folder
    )
    quantizer = LayerQuantizer(method=method, policy=policy, spool=spool, folder=folder)
    factors: dict[str, Factors] = {}
    groups = window_groups(windows)
    with torch.no_grad():
        tables.round_tied(groups, progress)
        progress.stage("calibrating")
        streams = _embed(executor, groups, tables.stored(), folder)
        for layer in progress.track(executor.layers(), executor.num_layers):
            for rescaling, scales in quantizer.quantize(layer, streams):
                note(factors, layer, rescaling, scales)
        tables.round_untied(groups, streams)
    return Calibration(rounded=spool, factors=factors, losses=quantizer.losses)


def _embed(
    executor: LayerwiseExecutor,
    groups: Sequence[Tensor],
    stored: Mapping[str, Tensor],
    folder: Path,
) -> Streams:
    """Look the windows up, in the embedding as it will be stored and in the float one."""

    def states(weights: Mapping[str, Tensor], name: str) -> HiddenStates:
        embedded = (executor.embed(ids, weights) for ids in groups)
        return HiddenStates(embedded, folder / name)

    original = states(executor.head_weights(), "original")
    return Streams(quantized=states(stored, "quantized"), original=original)
