"""How far the activations reach that the matrices of a layer read.

Axes: K features.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from wiola_export.calibrate.hidden import HiddenStates
from wiola_export.calibrate.taps import Stage, inputs_of
from wiola_export.errors import QuantizationError
from wiola_export.families.layerwise import LoadedLayer
from wiola_export.quantize.formats import ActivationRange


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """Smallest and largest activation of every feature, (K,)."""

    low: Tensor
    high: Tensor

    @property
    def largest(self) -> Tensor:
        """The largest absolute value of every feature, (K,)."""
        return torch.maximum(-self.low, self.high)

    @property
    def levels(self) -> float:
        """How many steps of a range over all of them the median feature reaches from zero."""
        return float(self.largest.median()) / self.spanning().scale

    def joined(self, other: "Extent") -> "Extent":
        """Return the extent of both."""
        return Extent(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))

    def divided(self, scales: Tensor) -> "Extent":
        """Return the extent of activations whose features are divided by scales (K,)."""
        return Extent(self.low / scales, self.high / scales)

    def spanning(self) -> ActivationRange:
        """Return the range that holds all of them."""
        return ActivationRange.spanning(float(self.low.min()), float(self.high.max()))


def extents_of(
    layer: LoadedLayer, groups: Sequence[Stage], states: HiddenStates
) -> dict[Stage, Extent]:
    """Return the extent of the input of each group of weights."""
    found: dict[Stage, Extent] = {}
    for hidden in states:
        for stage, x in inputs_of(layer, groups, hidden, layer.weights).items():
            flat = x.reshape(-1, x.shape[-1])
            extent = Extent(flat.amin(dim=0), flat.amax(dim=0))
            found[stage] = found[stage].joined(extent) if stage in found else extent
    for stage, extent in found.items():
        if not extent.largest.isfinite().all():
            raise QuantizationError(
                f"the input of {layer.full_name(stage[0])} is not finite in the float model; "
                "check the checkpoint, or keep activations in floating point: --scheme weight-only"
            )
    return found
