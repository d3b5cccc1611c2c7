"""Rows of a weight as integers: rounded beforehand where calibration has seen to it, else now."""

from collections.abc import Callable, Mapping

import numpy as np

from wiola_export.errors import QuantizationError
from wiola_export.quantize.formats import Blocks, FloatName
from wiola_export.quantize.packing import pad_to_blocks
from wiola_export.quantize.rounding import Codes, Floats32, round_blocks
from wiola_export.quantize.spool import RoundedWeight, check_scales
from wiola_export.weights import Rows, ScaledWeight, StackedWeight, Weight

Rounder = Callable[[Floats32, Blocks], Codes]
# In float16 the scales would overflow, in float32 the squares from which they are found.
LARGEST_WEIGHTS: dict[FloatName, float] = {"float32": 1e15, "float16": 65504.0}


class Rounding:
    """How weights become codes.

    Args:
        round_blocks: From blocks (n, b, k) to codes.
        rounded: Weights that have been rounded already, by tensor name.
    """

    def __init__(
        self, round_blocks: Rounder, rounded: Mapping[str, RoundedWeight] | None = None
    ) -> None:
        self._round_blocks = round_blocks
        self._rounded = rounded or {}

    def rows(self, weight: Weight, start: int, stop: int, form: Blocks) -> Codes:
        """Return the codes of rows [start, stop).

        Raises:
            QuantizationError: A weight is beyond what the format holds.
        """
        if isinstance(weight, StackedWeight):
            spans = weight.spans(start, stop)
            return Codes.joined([self.rows(part, *span, form) for part, span in spans])
        found = self._rounded.get(weight.sources[0])
        if found is None:
            largest = LARGEST_WEIGHTS[form.scales]
            blocks = pad_to_blocks(fitting_rows(weight, start, stop, largest), form.block_size)
            return self._round_blocks(blocks, form)
        assert found.form == form, f"{weight.sources[0]} was rounded as {found.form}, not {form}"
        factor = weight.factor if isinstance(weight, ScaledWeight) else 1.0
        codes = found.read(start, stop)
        with np.errstate(over="ignore"):  # an error of ours names the weight
            scales = (codes.scales.astype(np.float32) * np.float32(factor)).astype(form.scales)
        scaled = Codes(codes.codes, scales, codes.zero_points)
        check_scales(weight.sources[0], scaled, form)
        return scaled


NEAREST = Rounding(round_blocks)


def fitting_rows(weight: Weight, start: int, stop: int, largest: float) -> Rows:
    """Read rows, none of whose weights may be beyond `largest`.

    Raises:
        QuantizationError: One is.
    """
    rows = weight.rows(start, stop)
    found = float(np.abs(rows).max())
    if found > largest:
        raise QuantizationError(
            f"{', '.join(weight.sources)} holds a weight of {found:.3g}, expected at most "
            f"{largest:.3g} in this precision and target; check the checkpoint, or keep "
            f"float32 with --fp32"
        )
    return rows
