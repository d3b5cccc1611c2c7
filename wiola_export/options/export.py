"""One export, described: what goes with what."""

import dataclasses
from pathlib import Path

from wiola_export.errors import OptionError
from wiola_export.options.budget import Budget
from wiola_export.options.calibration import DATA_FREE, CalibrationOptions
from wiola_export.options.quantization import (
    CALIBRATED,
    DEFAULT_CALIBRATOR,
    DEFAULT_METHOD,
    DEFAULT_SMOOTHING,
    Calibrator,
    Method,
    Quantization,
)
from wiola_export.options.source import Source
from wiola_runtime.manifest import Target


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """One export, described.

    Attributes:
        int8_cache: Keep keys and values as int8, scaled to what a text shows: a quarter of the
            memory of a float32 cache (docs/decisions/0004-int8-cache.md).
        out: Folder to write; None makes a name from source and precision in the working folder.
        report: Whether to measure accuracy, speed and memory after the export.
        text: UTF-8 file to measure on; None takes the packaged texts.
        force: Replace an earlier bundle.
    """

    source: Source
    quantization: Quantization
    calibration: CalibrationOptions = dataclasses.field(default_factory=CalibrationOptions)
    budget: Budget = dataclasses.field(default_factory=Budget)
    target: Target = "cpu"
    int8_cache: bool = False
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
        self._check_cache()
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
        return self.calibrates_weights or self.int8_cache

    @property
    def calibrates_weights(self) -> bool:
        """Whether weights are stored as a text wants them."""
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
        given = source not in (None, DATA_FREE) or self.calibration != CalibrationOptions(
            source=source
        )
        if given and not self.calibrates:
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

    def _check_cache(self) -> None:
        """Refuse an int8 cache where no kernel reads it, or nothing tells its scales."""
        if self.int8_cache and self.target != "cpu":
            raise OptionError(
                f"--int8-cache needs --target cpu, not {self.target}; drop it to keep the cache "
                "in floating point"
            )
        if self.int8_cache and self.calibration.source == DATA_FREE:
            raise OptionError(f"--int8-cache needs a text; drop --calibration {DATA_FREE}")

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
