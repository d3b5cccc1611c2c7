"""Bring the weights of a model into the form in which they are stored, calibrated if wanted."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from wiola_calibration import (
    CalibrationFiles,
    CalibrationRecord,
    CalibrationSet,
    Sampling,
    Text,
    Tokenization,
    calibration_set,
    packaged_calibration,
    user_calibration,
)
from wiola_export.bundle import token_spec
from wiola_export.extras import explain_missing_extra
from wiola_export.options import (
    CALIBRATED,
    DEFAULT_BLOCK_SIZES,
    FINEST_BLOCK_SIZE,
    CalibrationOptions,
    ExportOptions,
    Quantization,
)
from wiola_export.progress import Progress
from wiola_export.quantize.formats import Blocks, FloatName, Floats, SignedRows, StaticRows
from wiola_export.quantize.hqq import hqq_blocks
from wiola_export.quantize.plan import read_plan
from wiola_export.quantize.policy import Policy
from wiola_export.quantize.rounded import NEAREST, Rounding
from wiola_export.quantize.rounding import round_blocks
from wiola_export.scratch import scratch_folder
from wiola_export.source import Model
from wiola_export.weights import Factors, RescaledWeight, Weight
from wiola_runtime.manifest import QuantizedTensor, Target
from wiola_runtime.text import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """How every weight will be stored.

    Attributes:
        factors: What rows and columns of a tensor are multiplied by; the model computes the same.
        record: Which texts were calibrated on; None where none were.
        sensitivity: Divergence in nats that rounding one tensor alone costs, where it was measured.
        windows: Token ids (W, T) of those texts; None where none were.
    """

    policy: Policy
    factors: Mapping[str, Factors] = dataclasses.field(default_factory=dict)
    record: CalibrationRecord | None = None
    sensitivity: Mapping[str, float] = dataclasses.field(default_factory=dict)
    windows: NDArray[np.int64] | None = None

    def weight(self, model: Model, name: str) -> Weight:
        """Return a tensor of the model as it is to be stored, unread."""
        weight = model.weight(name)
        return RescaledWeight(weight, self.factors[name]) if name in self.factors else weight

    def sensitivity_of(self, stored: Sequence[QuantizedTensor]) -> dict[str, float]:
        """Add up the sensitivities of what every matrix of a graph is made from."""
        known = [t for t in stored if all(source in self.sensitivity for source in t.sources)]
        return {t.name: sum(self.sensitivity[source] for source in t.sources) for t in known}


def open_calibration(options: ExportOptions) -> CalibrationFiles | None:
    """Open the texts to calibrate on, before any heavy work; None without calibration.

    Raises:
        CorpusError: A file is absent, empty, or no text.
    """
    if not options.calibrates:
        return None
    source = options.calibration.source
    if source is None:
        return packaged_calibration()
    if isinstance(source, str):
        return packaged_calibration(source)
    return user_calibration(source)


@contextmanager
def prepared_weights(
    model: Model,
    options: ExportOptions,
    files: CalibrationFiles | None,
    evaluation: Sequence[Text],
    progress: Progress,
) -> Iterator[Prepared]:
    """Decide how weights are stored; what calibration rounds lies in files until the end.

    Raises:
        CorpusError: The texts do not fill a window.
        MissingExtraError: torch is not installed.
    """
    if files is None:
        yield Prepared(policy=planned_policy(model, options))
        return
    progress.stage("calibrating")
    found = calibration_windows(model, files, options.calibration, evaluation)
    for warning in found.record.warnings:
        progress.warn(warning)
    with scratch_folder("wiola-export-", progress.warn) as place:
        if not options.calibrates_weights:
            prepared = Prepared(policy=planned_policy(model, options))
        elif options.quantization.rounds_activations:
            prepared = _fit_activations(model, options, found.windows, place, progress)
        else:
            prepared = _round_weights(model, options, found.windows, place, progress)
        yield dataclasses.replace(prepared, record=found.record, windows=found.windows)


def _round_weights(
    model: Model,
    options: ExportOptions,
    windows: NDArray[np.int64],
    folder: Path,
    progress: Progress,
) -> Prepared:
    """Round blocks of weights on what they are multiplied by."""
    with explain_missing_extra():
        from wiola_export.calibrate.calibration import calibrate  # noqa: PLC0415  torch is heavy
        from wiola_export.calibrate.levels import lost_too_much  # noqa: PLC0415
        from wiola_export.calibrate.mixed import cost_of_policy, plan_bits  # noqa: PLC0415
    policy = planned_policy(model, options)
    sensitivity: Mapping[str, float] = {}
    factors: Mapping[str, Factors] = {}
    if options.searches_bits:
        progress.stage("measuring sensitivities")
        mixed = plan_bits(model, windows, policy, options, folder, progress)
        policy = dataclasses.replace(policy, planned=mixed.plan.forms)
        sensitivity = mixed.chosen()
    elif options.report:
        progress.stage("measuring sensitivities")
        sensitivity = cost_of_policy(model, windows, policy, folder, progress)
    if options.method in CALIBRATED:
        done = calibrate(model, windows, options.method, policy, folder, progress)
        policy = dataclasses.replace(policy, rounding=Rounding(round_blocks, done.rounded))
        factors = done.factors
        if options.target != "cuda" and (warning := lost_too_much(done.losses, options.method)):
            progress.warn(warning)
    return Prepared(policy=policy, factors=factors, sensitivity=sensitivity)


def _fit_activations(
    model: Model,
    options: ExportOptions,
    windows: NDArray[np.int64],
    folder: Path,
    progress: Progress,
) -> Prepared:
    """Smooth what is rounded to 8 bits, and find its ranges where they are fixed."""
    with explain_missing_extra():
        from wiola_export.calibrate.activations import (  # noqa: PLC0415  torch is heavy
            ActivationCalibrator,
        )
    calibrator = ActivationCalibrator(smoothing=options.smoothing, calibrator=options.calibrator)
    found = calibrator.calibrate(model, windows, folder, progress)
    policy = make_policy(options.quantization, options.target)
    ranges = {name: StaticRows(activations) for name, activations in found.ranges.items()}
    return Prepared(policy=dataclasses.replace(policy, planned=ranges), factors=found.factors)


def calibration_windows(
    model: Model,
    files: CalibrationFiles,
    choice: CalibrationOptions,
    evaluation: Sequence[Text],
) -> CalibrationSet:
    """Cut the calibration texts into windows of the model's tokens.

    Raises:
        CorpusError: They do not fill one.
    """
    tokenizer = Tokenizer.read(model.tokenizer.path, token_spec(model))
    ends = model.tokenizer.eos_ids(None)
    tokenization = Tokenization(
        encode=tokenizer.encode,
        bos_id=model.tokenizer.bos_id,
        eos_id=ends[0] if ends else None,
    )
    context = min(choice.context, model.config.max_position_embeddings)
    sampling = Sampling(context=context, max_windows=choice.windows, seed=choice.seed)
    return calibration_set(files, tokenization, sampling, evaluation)


def planned_policy(model: Model, options: ExportOptions) -> Policy:
    """Return the policy of an export, with the plan that it was given.

    Raises:
        OptionError: The plan does not fit the model.
    """
    policy = make_policy(options.quantization, options.target)
    if options.budget.plan is None:
        return policy
    plan = read_plan(options.budget.plan, model.config.tensor_shapes(), policy.floats)
    return dataclasses.replace(policy, planned=plan.forms)


def table_block_size(quantization: Quantization) -> int:
    """Return the block of embedding and head; at 8 bits a finer one than that of the matrices.

    Kernels round what they multiply in the same blocks, and the head is where that costs most.
    """
    chosen, precision = quantization.block_size, quantization.precision
    finer = precision == "int8" and quantization.resolved_scheme == "weight-only"
    if chosen is None and finer:
        return FINEST_BLOCK_SIZE
    return quantization.resolved_block_size or DEFAULT_BLOCK_SIZES["int8"]


def make_policy(quantization: Quantization, target: Target) -> Policy:
    """Translate precision and scheme into the formats of weights."""
    floats: FloatName = "float16" if target == "cuda" else "float32"
    size = quantization.resolved_block_size or DEFAULT_BLOCK_SIZES["int8"]
    symmetric = quantization.symmetric
    tables = Blocks(
        bits=8, block_size=table_block_size(quantization), symmetric=symmetric, scales=floats
    )
    rounding = Rounding(hqq_blocks) if quantization.method == "hqq" else NEAREST
    match quantization.resolved_scheme:
        case "float":
            return Policy(matrices=Floats(floats), tables=Floats(floats), floats=floats)
        case "dynamic":
            return Policy(matrices=SignedRows(), tables=tables, floats=floats)
        case "static":  # each matrix is planned once the range of its input is known
            return Policy(matrices=Floats(floats), tables=tables, floats=floats)
        case "weight-only":
            bits = cast("Literal[4, 8]", quantization.bits)
            matrices = dataclasses.replace(tables, bits=bits, block_size=size)
            return Policy(
                matrices=matrices,
                tables=tables,
                floats=floats,
                rounding=rounding,
                lookup_bits=8 if target == "portable" else 4,  # ONNX's Gather takes no 4-bit type
            )
