"""How weights and activations are stored."""

import dataclasses
from typing import Literal

from wiola_export.errors import OptionError
from wiola_runtime.manifest import Precision

Scheme = Literal["float", "weight-only", "dynamic", "static"]
Method = Literal["nearest", "hqq", "gptq", "awq", "awq-gptq"]
Calibrator = Literal["minmax", "percentile", "entropy"]
Smoothing = float | Literal["none"]

BLOCK_SIZES = (16, 32, 64, 128)
FINEST_BLOCK_SIZE = min(BLOCK_SIZES)
DEFAULT_BLOCK_SIZES: dict[Precision, int] = {"int8": 32, "int4": 32}
CALIBRATED: frozenset[Method] = frozenset({"gptq", "awq", "awq-gptq"})
DEFAULT_METHOD: Method = "gptq"
# Schemes that multiply integers by integers, and how strongly activations are smoothed for them.
DEFAULT_SMOOTHING: dict[Scheme, float] = {"dynamic": 0.75, "static": 0.75}
DEFAULT_CALIBRATOR: Calibrator = "percentile"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How weights are stored.

    Attributes:
        precision: `fp32` and `fp16` keep floats; `int8` and `int4` quantize every weight matrix.
        scheme: None takes `weight-only` for integers: blocks with a scale and a zero point each.
            `dynamic` (int8) stores one scale per row and rounds activations token by token;
            `static` (int8) does so within ranges found on a text.
        block_size: Weights of a row that share one scale; None takes 32, and 16 for embedding and
            head of int8.
        symmetric: Leave zero points out: fewer bytes, a larger error.
        method: How blocks are rounded (docs/quantization.md); None takes `gptq` where there is
            something to calibrate on, else `nearest`.
        smooth: Strength of SmoothQuant, 0 to 1, or `none`; None takes the scheme's default where
            there is something to calibrate on.
        calibrator: How the ranges of `static` are found; None takes `percentile`.
    """

    precision: Precision
    scheme: Scheme | None = None
    block_size: int | None = None
    symmetric: bool = False
    method: Method | None = None
    smooth: Smoothing | None = None
    calibrator: Calibrator | None = None

    def __post_init__(self) -> None:
        """Refuse what is out of range or without effect."""
        scheme = self.resolved_scheme
        if self.is_float and self.scheme not in (None, "float"):
            raise OptionError(f"--scheme {self.scheme} has no effect with --{self.precision}")
        if not self.is_float and scheme == "float":
            raise OptionError(f"--scheme float contradicts --{self.precision}")
        self._check_activations(scheme)
        if scheme != "weight-only" and self.block_size is not None:
            raise OptionError(
                f"--block-size has no effect with --{self.precision}, scheme {scheme}"
            )
        if self.method == "hqq" and self.symmetric:
            raise OptionError("--method hqq moves zero points; drop --symmetric or --method hqq")
        if scheme != "weight-only" and self.method is not None:
            raise OptionError(f"--method has no effect with --{self.precision}, scheme {scheme}")
        if scheme == "float" and self.symmetric:
            raise OptionError(f"--symmetric has no effect with --{self.precision}")
        if self.block_size not in (None, *BLOCK_SIZES):
            sizes = ", ".join(map(str, BLOCK_SIZES))
            raise OptionError(f"--block-size is {self.block_size}; expected one of {sizes}")

    def _check_activations(self, scheme: Scheme) -> None:
        """Refuse what concerns 8-bit activations where there are none, or is out of range."""
        if self.rounds_activations and self.precision != "int8":
            raise OptionError(
                f"--scheme {scheme} has 8 bits; use it with --int8, not --{self.precision}"
            )
        if not self.rounds_activations and self.smooth is not None:
            raise OptionError(f"--smooth has no effect with --{self.precision}, scheme {scheme}")
        if scheme != "static" and self.calibrator is not None:
            raise OptionError(
                f"--calibrator has no effect with --{self.precision}, scheme {scheme}"
            )
        if isinstance(self.smooth, float | int) and not 0 <= self.smooth <= 1:
            raise OptionError(f"--smooth is {self.smooth}; expected 0 to 1, or none")

    @property
    def rounds_activations(self) -> bool:
        """Whether activations are rounded to integers for whole matrices."""
        return self.resolved_scheme in DEFAULT_SMOOTHING

    @property
    def is_float(self) -> bool:
        """Whether weights stay in floating point."""
        return self.precision in ("fp32", "fp16")

    @property
    def resolved_scheme(self) -> Scheme:
        """The scheme, with the default filled in."""
        return self.scheme or ("float" if self.is_float else "weight-only")

    @property
    def resolved_block_size(self) -> int:
        """The block size, with the default filled in; 0 where there are no blocks."""
        if self.resolved_scheme != "weight-only":
            return 0
        return self.block_size or DEFAULT_BLOCK_SIZES[self.precision]

    @property
    def bits(self) -> int:
        """Bits of one stored weight."""
        return {"fp32": 32, "fp16": 16, "int8": 8, "int4": 4}[self.precision]
