"""Prepare a model for 8-bit activations: smooth them, and find the range of each.

Axes: W windows, B windows of a group, T tokens of a window, K features.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.calibrate.extent import Extent, extents_of
from wiola_export.calibrate.hidden import HiddenStates, window_groups
from wiola_export.calibrate.levels import too_few_in_range
from wiola_export.calibrate.observers import HistogramObserver
from wiola_export.calibrate.rescale import Scales, at_reader, note, rescaled
from wiola_export.calibrate.smooth import smoothing_scales
from wiola_export.calibrate.taps import Stage, inputs_of, stages
from wiola_export.families.layerwise import LoadedLayer
from wiola_export.options import Calibrator
from wiola_export.progress import Progress
from wiola_export.quantize.formats import ActivationRange
from wiola_export.reference import open_executor, read_tensor
from wiola_export.source import Model
from wiola_export.weights import Factors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What is done about the activations of a model.

    Attributes:
        factors: What rows and columns of a tensor are multiplied by before they are stored.
        ranges: How the input of each matrix is rounded, by the matrix; empty where each token
            has its own.
    """

    factors: Mapping[str, Factors]
    ranges: Mapping[str, ActivationRange]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCalibrator:
    """How activations are prepared.

    Attributes:
        smoothing: Strength of SmoothQuant, 0 to 1; None leaves activations as they are.
        calibrator: How ranges are found; None finds none.
    """

    smoothing: float | None
    calibrator: Calibrator | None

    def calibrate(
        self, model: Model, windows: NDArray[np.int64], folder: Path, progress: Progress
    ) -> Activations:
        """Look at layer after layer of the float model.

        Args:
            model: A checkpoint.
            windows: Token ids (W, T).
            folder: Takes hidden states; the caller removes it.
            progress: Is told what goes on.

        Raises:
            QuantizationError: Activations of the float model are not finite.
        """
        executor = open_executor(model, lambda name: read_tensor(model, name))
        factors: dict[str, Factors] = {}
        ranges: dict[str, ActivationRange] = {}
        levels: dict[str, float] = {}
        with torch.no_grad():
            weights = executor.head_weights()
            groups = window_groups(windows)
            states = HiddenStates((executor.embed(ids, weights) for ids in groups), folder)
            for layer in progress.track(executor.layers(), executor.num_layers):
                scales, extents = self._smoothed(layer, states)
                found = self._ranges(layer, states, extents, rescaled(scales, layer.weights))
                for rescaling, values in scales:
                    note(factors, layer, rescaling, values)
                ranges |= {layer.full_name(name): found[stage] for stage in found for name in stage}
                levels |= {layer.full_name(stage[0]): one.levels for stage, one in extents.items()}
                for index, hidden in enumerate(states):
                    states[index] = layer.run(hidden)
        if warning := too_few_in_range(levels, self.smoothing):
            progress.warn(warning)
        return Activations(factors=factors, ranges=ranges)

    def _smoothed(
        self, layer: LoadedLayer, states: HiddenStates
    ) -> tuple[Scales, dict[Stage, Extent]]:
        """Return the rescalings of one layer, and how far its matrices' inputs reach then."""
        groups = stages(layer, states[0])
        extents = extents_of(layer, groups, states)
        scales: Scales = []
        strength = self.smoothing
        if strength is None:
            return scales, extents
        for rescaling in layer.layer.rescalings:
            (stage,) = (stage for stage in groups if set(stage) == set(rescaling.readers))
            largest = extents[stage].largest
            found = smoothing_scales(rescaling, layer.weights, largest, strength)
            scales.append((rescaling, found))
            extents[stage] = extents[stage].divided(at_reader(rescaling, found))
        return scales, extents

    def _ranges(
        self,
        layer: LoadedLayer,
        states: HiddenStates,
        extents: Mapping[Stage, Extent],
        weights: Mapping[str, Tensor],
    ) -> dict[Stage, ActivationRange]:
        """Return the range of every input, given its extent after smoothing."""
        method = self.calibrator
        if method is None:
            return {}
        if method == "minmax":
            return {stage: extent.spanning() for stage, extent in extents.items()}
        observers = {
            stage: HistogramObserver(method, float(one.low.min()), float(one.high.max()))
            for stage, one in extents.items()
        }
        for hidden in states:
            for stage, x in inputs_of(layer, list(extents), hidden, weights).items():
                observers[stage].add(x.numpy())
        return {stage: observer.range() for stage, observer in observers.items()}
