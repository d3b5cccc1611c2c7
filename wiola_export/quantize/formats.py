"""The ways in which a weight matrix can be stored."""

import dataclasses
from typing import Literal

FloatName = Literal["float32", "float16"]
HIGHEST_ACTIVATION = 255
# Kernels divide by the step in float32, where anything smaller loses digits or is zero.
SMALLEST_STEP = 2.0**-126
FLOAT_BITS: dict[FloatName, int] = {"float32": 32, "float16": 16}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Unsigned integers with a scale, and perhaps a zero point, for each block of a row.

    Attributes:
        bits: 4 or 8.
        block_size: Consecutive input features that share a scale; a power of two from 16 on.
        symmetric: The zero point is 2^(bits − 1) and is not stored.
        scales: Element type of the scales.
    """

    bits: Literal[4, 8]
    block_size: int
    symmetric: bool = False
    scales: FloatName = "float32"

    @property
    def highest_code(self) -> int:
        """Largest unsigned integer of the format."""
        return int(2**self.bits) - 1

    @property
    def middle(self) -> int:
        """Zero point of the symmetric form."""
        return int(2 ** (self.bits - 1))


@dataclasses.dataclass(frozen=True, slots=True)
class SignedRows:
    """Signed 8-bit integers with one scale for each row; activations token by token."""


@dataclasses.dataclass(frozen=True, slots=True)
class ActivationRange:
    """How activations are rounded to unsigned 8-bit integers: x ≈ (code − zero_point) · scale.

    Attributes:
        scale: One step; positive.
        zero_point: Code of zero, 0 to 255.
    """

    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        assert self.scale > 0
        assert 0 <= self.zero_point <= HIGHEST_ACTIVATION

    @classmethod
    def spanning(cls, low: float, high: float) -> "ActivationRange":
        """Return the range from `low` to `high`, widened to hold zero exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / HIGHEST_ACTIVATION
        scale = scale if scale >= SMALLEST_STEP else 1.0
        return cls(scale, min(round(-low / scale), HIGHEST_ACTIVATION))


@dataclasses.dataclass(frozen=True, slots=True)
class StaticRows:
    """Signed rows, multiplied by activations that are rounded within a fixed range."""

    activations: ActivationRange


@dataclasses.dataclass(frozen=True, slots=True)
class Floats:
    """Floating point."""

    dtype: FloatName = "float32"


Format = Blocks | SignedRows | StaticRows | Floats
