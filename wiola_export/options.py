"""Every choice an export can make, checked once and frozen."""

import dataclasses
from pathlib import Path
from typing import Literal

from wiola_export.budget import Budget
from wiola_export.errors import OptionError
from wiola_runtime.manifest import Precision, Target

Scheme = Literal["float", "weight-only", "dynamic", "static"]
Method = Literal["nearest", "hqq", "gptq", "awq", "awq-gptq"]
Calibrator = Literal["minmax", "percentile", "entropy"]
Smoothing = float | Literal["none"]

BLOCK_SIZES = (16, 32, 64, 128)
DEFAULT_BLOCK_SIZES: dict[Precision, int] = {"int8": 64, "int4": 32}
DEMO = "demo"
DATA_FREE = "none"
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
            `dynamic` (int8) stores one scale per row and quantizes activations as they come;
            `static` (int8) does so within ranges found on a text.
        block_size: Weights of a row that share one scale; None takes 64 for int8, 32 for int4.
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """Which text the weights are rounded on.

    Attributes:
        source: A file or folder of texts, the name of a packaged corpus, or `none`; None takes
            all packaged corpora.
        windows: Most windows that are used.
        context: Tokens of a window.
        seed: Chooses the windows where there are more.
    """

    source: Path | str | None = None
    windows: int = 64
    context: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name, least in (("windows", 1), ("context", 2), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise OptionError(
                    f"--calibration-{name} is {value}; expected at least {least}, or "
                    f"--calibration {DATA_FREE}"
                )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the weights come from.

    Attributes:
        variant: A published size, or `demo`, the packaged checkpoint.
        checkpoint: A folder in the Hugging Face layout. Without one, a published size gets seeded
            random weights.
        seed: Seed of random weights.
    """

    variant: str | None = None
    checkpoint: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a source that names nothing, or two things."""
        if self.variant is None and self.checkpoint is None:
            raise OptionError("nothing to export; give --checkpoint DIR or --variant NAME")
        if self.variant == DEMO and self.checkpoint is not None:
            raise OptionError("--variant demo is a checkpoint already; drop --checkpoint")
        if self.seed < 0:
            raise OptionError(f"--seed is {self.seed}; expected 0 or more")
        if self.seed and not self.is_random:
            raise OptionError("--seed has no effect on a trained checkpoint")

    @property
    def is_random(self) -> bool:
        """Whether the weights will be random."""
        return self.checkpoint is None and self.variant != DEMO


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """One export, described.

    Attributes:
        out: Folder to write; None makes a name from source and precision in the working folder.
        report: Whether to measure accuracy, speed and memory after the export.
        text: UTF-8 file to measure on; None takes the packaged texts.
        force: Replace an earlier bundle.
    """

    source: Source
    quantization: Quantization
    calibration: CalibrationOptions = CalibrationOptions()
    budget: Budget = dataclasses.field(default_factory=Budget)
    target: Target = "cpu"
    out: Path | None = None
    report: bool = True
    text: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse combinations that would fail minutes later."""
        precision = self.quantization.precision
        if precision == "fp16" and self.target != "cuda":
            raise OptionError(
                f"--fp16 needs --target cuda: float16 matrices have no CPU kernel and would be "
                f"computed in float32; use --fp32 or --int8 with --target {self.target}"
            )
        if precision == "fp32" and self.target == "cuda":
            raise OptionError(
                "--fp32 needs --target cpu or portable: attention on CUDA has no float32 kernel; "
                "use --fp16 with --target cuda"
            )
        self._check_calibration()
        self._check_activations()
        self._check_budget()
        if self.text is not None and not self.report:
            raise OptionError("--text has no effect with --no-report")
        if self.text is not None and self.source.is_random:
            raise OptionError("--text has no effect on random weights, which have no accuracy")

    @property
    def method(self) -> Method:
        """How blocks are rounded, with the default filled in."""
        chosen = self.quantization.method
        if chosen is not None:
            return chosen
        blocks = self.quantization.resolved_scheme == "weight-only"
        return DEFAULT_METHOD if blocks and not self._is_data_free else "nearest"

    @property
    def smoothing(self) -> float | None:
        """How strongly activations are smoothed, with the default filled in; None: not at all."""
        chosen = self.quantization.smooth
        if chosen == "none" or (chosen is None and self._is_data_free):
            return None
        return (
            DEFAULT_SMOOTHING.get(self.quantization.resolved_scheme) if chosen is None else chosen
        )

    @property
    def calibrator(self) -> Calibrator | None:
        """How ranges of activations are found, with the default filled in; None: not at all."""
        if self.quantization.resolved_scheme != "static":
            return None
        return self.quantization.calibrator or DEFAULT_CALIBRATOR

    @property
    def calibrates(self) -> bool:
        """Whether the export looks at a text."""
        return (
            self.method in CALIBRATED
            or self.smoothing is not None
            or self.calibrator is not None
            or self.searches_bits
        )

    @property
    def searches_bits(self) -> bool:
        """Whether each tensor gets the bits that a budget leaves for it."""
        budget = self.budget
        if budget.plan is not None or self.quantization.resolved_scheme != "weight-only":
            return False
        return budget.bits_per_weight is not None or (
            budget.limits_accuracy and not self._is_data_free
        )

    @property
    def _is_data_free(self) -> bool:
        return self.calibration.source == DATA_FREE or self.source.is_random

    def _check_calibration(self) -> None:
        """Refuse a text without effect, and a method without a text."""
        method, source = self.quantization.method, self.calibration.source
        if method in CALIBRATED and source == DATA_FREE:
            raise OptionError(
                f"--method {method} needs a text; drop --calibration {DATA_FREE}, or take "
                "--method nearest or hqq"
            )
        if method in CALIBRATED and self.source.is_random:
            raise OptionError(
                f"--method {method} needs trained weights: calibrating random ones says nothing; "
                "give --checkpoint DIR or drop --method"
            )
        if self.calibrates or self.calibration == CalibrationOptions(source=source):
            without_effect = not self.calibrates and source not in (None, DATA_FREE)
        else:
            without_effect = True
        if without_effect:
            raise OptionError(f"--calibration has no effect here: {self._why_data_free()}; drop it")

    def _check_activations(self) -> None:
        """Refuse 8-bit activations where no kernel takes them, or nothing tells their ranges."""
        scheme = self.quantization.resolved_scheme
        if scheme == "dynamic" and self.target != "cpu":
            raise OptionError(f"--scheme dynamic needs --target cpu, not {self.target}")
        if scheme == "static" and self.target == "cuda":
            raise OptionError("--scheme static needs --target cpu or portable, not cuda")
        chosen = self.quantization.smooth
        asked = "--scheme static" if scheme == "static" else f"--smooth {chosen}"
        if not self._is_data_free or (scheme != "static" and chosen in (None, "none")):
            return
        if self.source.is_random:
            raise OptionError(
                f"{asked} needs trained weights: calibrating random ones says nothing; "
                "give --checkpoint DIR or take another scheme"
            )
        raise OptionError(f"{asked} needs a text; drop --calibration {DATA_FREE}")

    def _check_budget(self) -> None:
        """Refuse a budget that could not be spent or held."""
        budget = self.budget
        if not budget.is_set:
            return
        spent = "--plan" if budget.plan is not None else "--bits-per-weight"
        spends = budget.plan is not None or budget.bits_per_weight is not None
        if spends and self.quantization.resolved_scheme != "weight-only":
            raise OptionError(f"{spent} needs --int8 or --int4 with scheme weight-only")
        if budget.bits_per_weight is not None and self._is_data_free:
            raise OptionError(
                "--bits-per-weight needs trained weights and a text to measure them on; "
                "give --checkpoint DIR and no --calibration none"
            )
        if budget.limits_accuracy and (not self.report or self.source.is_random):
            why = "random weights have no accuracy" if self.report else "--no-report measures none"
            raise OptionError(f"--max-kl and --max-ppl-ratio have no effect: {why}")

    def _why_data_free(self) -> str:
        if self.source.is_random:
            return "the weights are random"
        if self.quantization.rounds_activations:
            return "nothing is smoothed"
        if self.quantization.resolved_scheme != "weight-only":
            return f"scheme {self.quantization.resolved_scheme} needs no text"
        return f"--method {self.quantization.method} needs no text"
