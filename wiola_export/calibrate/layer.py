"""Quantize the matrices of one layer, each on what the quantized model before it gives.

Axes: N rows, K features.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wiola_export.calibrate.gptq import corrected, gptq
from wiola_export.calibrate.hidden import HiddenStates
from wiola_export.calibrate.moments import Moments
from wiola_export.calibrate.rescale import find_scales, rescaled
from wiola_export.calibrate.taps import Stage, input_of, stages
from wiola_export.families.layered import Rescaling
from wiola_export.families.layerwise import LoadedLayer
from wiola_export.options import Method
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.policy import Policy
from wiola_export.quantize.rounding import Codes, round_matrix
from wiola_export.quantize.spool import Spool


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
    """

    method: Method
    policy: Policy
    spool: Spool

    def quantize(
        self, layer: LoadedLayer, streams: Streams
    ) -> tuple[dict[str, Tensor], list[tuple[Rescaling, Tensor]]]:
        """Quantize one layer.

        Returns:
            Its weights as they will be computed with, and the rescalings made.
        """
        groups = stages(layer, streams.original[0])
        scales = self._scales(layer, groups, streams) if "awq" in self.method else []
        original = rescaled(scales, layer.weights)
        weights = dict(original)
        for stage in groups:
            forms = self._forms(layer, stage)
            if forms:
                weights |= self._stage(layer, forms, streams, (original, weights))
        return weights, scales

    def _stage(
        self,
        layer: LoadedLayer,
        forms: Mapping[str, Blocks],
        streams: Streams,
        weights: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Round the weights that read one input."""
        original, quantized = weights
        first = next(iter(forms))
        moments = None
        if "gptq" in self.method:
            moments = Moments(original[first].shape[1])
            for theirs, ours in zip(streams.quantized, streams.original, strict=True):
                moments.add(
                    input_of(layer, first, theirs, quantized),
                    input_of(layer, first, ours, original),
                )
        return {
            name: self._weight(layer.full_name(name), original[name], form, moments)
            for name, form in forms.items()
        }

    def _weight(self, name: str, weight: Tensor, form: Blocks, moments: Moments | None) -> Tensor:
        """Round one weight, keep its codes, and return it as it will be computed with."""
        codes: Codes
        if moments is None:
            codes = round_matrix(weight.numpy(), form)
        else:
            codes = gptq(corrected(weight, moments), moments.inputs, form)
        self.spool.put(name, codes, form)
        return torch.from_numpy(codes.matrix(weight.shape[1]))

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
        self, layer: LoadedLayer, groups: Sequence[Stage], streams: Streams
    ) -> list[tuple[Rescaling, Tensor]]:
        """Find the scales of every freedom of the layer, on what the float model gives."""
        found: list[tuple[Rescaling, Tensor]] = []
        for rescaling in layer.layer.rescalings:
            forms = self._forms(layer, rescaling.readers)
            if not forms:
                continue
            assert any(set(rescaling.readers) == set(stage) for stage in groups)
            moments = Moments(layer.weights[rescaling.readers[0]].shape[1])
            for hidden in streams.original:
                x = input_of(layer, rescaling.readers[0], hidden, layer.weights)
                moments.add(x, x)
            mean = moments.inputs / moments.tokens
            found.append((rescaling, find_scales(rescaling, layer.weights, mean, forms)))
        return found
