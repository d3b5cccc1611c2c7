"""What became of every weight matrix: quantized, or kept and why."""

import dataclasses
from collections import Counter

from wiola_runtime.manifest import QuantizationSpec, QuantizedTensor

QUANTIZED_BITS = 8  # and below


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeptMatrix:
    """A matrix in floating point, and the reason."""

    name: str
    shape: tuple[int, ...]
    bits: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many matrices are quantized.

    Attributes:
        by_bits: Matrices per width of their weights, e.g. {"4": 71, "8": 1}.
        kept: Every matrix that is not quantized.
    """

    quantized: int
    matrices: int
    by_bits: dict[str, int]
    kept: tuple[KeptMatrix, ...]

    def sentence(self) -> str:
        """Say it in one line."""
        kept = len(self.kept) or "none"
        return f"quantized {self.quantized} of {self.matrices} matrices; kept float: {kept}"


def measure_coverage(quantization: QuantizationSpec) -> Coverage:
    """Count the matrices that a manifest lists."""
    kept = tuple(_kept(t) for t in quantization.tensors if t.bits > QUANTIZED_BITS)
    widths = Counter(str(tensor.bits) for tensor in quantization.tensors)
    return Coverage(
        quantized=len(quantization.tensors) - len(kept),
        matrices=len(quantization.tensors),
        by_bits=dict(widths),
        kept=kept,
    )


def _kept(tensor: QuantizedTensor) -> KeptMatrix:
    return KeptMatrix(
        name=tensor.name,
        shape=tensor.shape,
        bits=tensor.bits,
        reason=tensor.note or "the chosen precision is floating point",
    )
