"""Every choice an export can make, checked once and frozen."""

import dataclasses
from pathlib import Path
from typing import Literal, get_args

from wiola_export.errors import OptionError
from wiola_runtime.manifest import Precision, Target

Scheme = Literal["float", "weight-only", "dynamic"]

BLOCK_SIZES = (16, 32, 64, 128)
DEFAULT_BLOCK_SIZE: dict[Precision, int] = {"int8": 64, "int4": 32}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How weights are stored.

    Attributes:
        precision: `fp32` and `fp16` keep floats; `int8` and `int4` quantize every weight matrix.
        scheme: `weight-only` stores blocks of integers with a scale and a zero point each;
            `dynamic` (8 bits, CPU) stores one scale per row and quantizes activations as they come.
        block_size: Weights of a row that share one scale; only for `weight-only`.
        symmetric: Leave zero points out: fewer bytes, a larger error.
    """

    precision: Precision
    scheme: Scheme = "weight-only"
    block_size: int | None = None
    symmetric: bool = False
