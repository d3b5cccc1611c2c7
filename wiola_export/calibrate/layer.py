"""Quantize the matrices of one layer, each on what the quantized model before it gives.

Axes: N rows, K features.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from wiola_export.calibrate.gptq import corrected, gptq, metric_of
from wiola_export.calibrate.hidden import HiddenStates, TensorGroups
from wiola_export.calibrate.levels import lost_in_blocks
from wiola_export.calibrate.moments import Moments
from wiola_export.calibrate.rescale import at_reader, find_scales, rescaled
from wiola_export.calibrate.settled import Settled
from wiola_export.calibrate.taps import Stage, run_tapped, stages
from wiola_export.families.layered import Rescaling
from wiola_export.families.layerwise import LoadedLayer
from wiola_export.options import Method
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.policy import Policy
from wiola_export.quantize.rounding import round_matrix
from wiola_export.quantize.spool import Spool

# A layer has several stages, whose inputs are kept at the same time.
STAGE_BYTES = 1 << 25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Hidden states of all windows in the quantized model and in the float one."""

    quantized: HiddenStates
    original: HiddenStates


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuantizer:
    """How the matrices of each layer are quantized.

    Attributes:
        method: `gptq` moves rounding errors to later features, `awq` scales features first.
        policy: Which weight is stored how.
        spool: Takes the rounded weights.
        folder: Takes what the float model's matrices read, while a layer is quantized.
        losses: Takes the share of the energy that rounding each input to 8 bits costs, by the
            first weight that reads it.
    """

    method: Method
    policy: Policy
    spool: Spool
    folder: Path
    losses: dict[str, float] = dataclasses.field(default_factory=dict)

    def quantize(self, layer: LoadedLayer, streams: Streams) -> list[tuple[Rescaling, Tensor]]:
        """Quantize one layer, take the streams behind it, and return the rescalings made."""
        groups = stages(layer, streams.original[0])
        inputs = self._run_original(layer, groups, streams.original)
        scales = self._scales(layer, inputs) if "awq" in self.method else []
        divisors = _divisors(scales)
        weights = rescaled(scales, layer.weights)
        settled = Settled(layer, self.folder, STAGE_BYTES)
        for stage in groups:
            forms = self._forms(layer, stage)
            if forms:
                quantized = (
                    settled.input_of(stage[0], group, hidden, weights)
                    for group, hidden in enumerate(streams.quantized)
                )
                original = ((x[0] / divisors.get(stage[0], 1.0)) for x in inputs[stage])
                weights |= self._stage(layer, forms, zip(quantized, original, strict=True), weights)
            inputs[stage].clear()
        for group, hidden in enumerate(streams.quantized):
            streams.quantized[group] = settled.run(group, hidden, weights)
        settled.clear()
        return scales

    def _run_original(
        self, layer: LoadedLayer, groups: Sequence[Stage], original: HiddenStates
    ) -> dict[Stage, TensorGroups]:
        """Take the float stream behind a layer, and keep what each stage reads on the way."""
        inputs = {
            stage: TensorGroups(self.folder / f"stage-{i}", STAGE_BYTES)
            for i, stage in enumerate(groups)
        }
        for index in range(len(original)):
            hidden = original[index]
            original[index], found = run_tapped(layer, groups, hidden, layer.weights)
            for stage, x in found.items():
                inputs[stage].append((x,))
        return inputs

    def _stage(
        self,
        layer: LoadedLayer,
        forms: Mapping[str, Blocks],
        inputs: Iterable[tuple[Tensor, Tensor]],
        weights: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Round the weights that read one input, given as the two models see it."""
        first = next(iter(forms))
        targets = {name: weights[name] for name in forms}
        if "gptq" not in self.method:
            codes = {n: round_matrix(w.numpy(), forms[n]) for n, w in targets.items()}
        else:
            moments = Moments(weights[first].shape[1])
            for quantized, original in inputs:
                moments.add(quantized, original)
            squares, size = moments.inputs.diagonal(), forms[first].block_size
            loss = lost_in_blocks(squares, list(targets.values()), size)
            self.losses[layer.full_name(first)] = loss
            found = corrected(list(targets.values()), moments)
            metric = metric_of(moments.inputs)
            codes = {
                name: gptq(target, metric, forms[name])
                for name, target in zip(targets, found, strict=True)
            }
        for name, made in codes.items():
            self.spool.put(layer.full_name(name), made, forms[name])
        return {
            name: torch.from_numpy(made.matrix(weights[name].shape[1]))
            for name, made in codes.items()
        }

    def _forms(self, layer: LoadedLayer, names: Sequence[str]) -> dict[str, Blocks]:
        """Return the formats of those weights that are rounded in blocks."""
        forms = {
            name: self.policy.decide(
                "matrix", layer.weights[name].shape[1], layer.full_name(name)
            ).form
            for name in names
        }
        return {name: form for name, form in forms.items() if isinstance(form, Blocks)}

    def _scales(
        self, layer: LoadedLayer, inputs: Mapping[Stage, TensorGroups]
    ) -> list[tuple[Rescaling, Tensor]]:
        """Find the scales of every freedom of the layer, on what the float model gives."""
        found: list[tuple[Rescaling, Tensor]] = []
        for rescaling in layer.layer.rescalings:
            forms = self._forms(layer, rescaling.readers)
            if not forms:
                continue
            (stage,) = (stage for stage in inputs if set(stage) == set(rescaling.readers))
            moments = Moments(layer.weights[stage[0]].shape[1])
            for (x,) in inputs[stage]:
                moments.add(x, x)
            mean = moments.inputs / moments.tokens
            found.append((rescaling, find_scales(rescaling, layer.weights, mean, forms)))
        return found


def _divisors(scales: Sequence[tuple[Rescaling, Tensor]]) -> dict[str, Tensor]:
    """Return what the inputs of weights are divided by, by the weights' names."""
    return {
        name: at_reader(rescaling, factors)
        for rescaling, factors in scales
        for name in rescaling.readers
    }
