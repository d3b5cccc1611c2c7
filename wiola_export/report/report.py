"""The report as a record, and the JSON that machines compare.

The same bundle, text and machine give the same bytes, except under `speed`.
"""

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType

from wiola_calibration.packing import TextRecord
from wiola_calibration.record import CalibrationRecord
from wiola_export.errors import EvaluationError
from wiola_export.evaluate.drop import Divergence, Drop
from wiola_export.evaluate.greedy import Continuation
from wiola_export.evaluate.ladder import Ladder
from wiola_export.evaluate.machine import Machine
from wiola_export.evaluate.speed import Speed
from wiola_export.report.coverage import Coverage, measure_coverage
from wiola_export.report.size import Sizes, measure_sizes
from wiola_export.report.tensors import TensorFigures, list_tensors
from wiola_runtime.manifest import Manifest, Precision, Target, Weights

SCHEMA_VERSION = 2
FILE_NAME = "report.json"
REFERENCE = "the checkpoint with weights rounded to float16, computed in float32"
NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the report is about.

    Attributes:
        scheme: Name of the quantization scheme, with the bits and the block of most matrices.
        method: How blocks of weights were rounded; None where there are none.
        smoothing: How strongly activations were smoothed into weights; None: not at all.
        calibrator: How ranges of activations were found; None where there are none.
    """

    name: str
    family: str
    variant: str | None
    precision: Precision
    target: Target
    scheme: str
    bits: int
    block_size: int
    method: str | None
    smoothing: float | None
    calibrator: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What was lost against the reference, and on which texts.

    Attributes:
        by_text: The drop on each of `texts`; empty where there is only one.
        ladder: None where only bundle and reference were compared.
        continuations: Empty where there was no float graph to generate with.
    """

    drop: Drop
    texts: tuple[TextRecord, ...]
    by_text: tuple[Drop, ...] = ()
    ladder: Ladder | None = None
    continuations: tuple[Continuation, ...] = ()

    def __post_init__(self) -> None:
        if self.by_text and len(self.by_text) != len(self.texts):
            raise EvaluationError(
                f"{len(self.by_text)} drops are given for {len(self.texts)} texts; "
                "give one for each, or none"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was measured on one bundle.

    Attributes:
        accuracy: None where it was not measured; always None for random weights.
        speed: None where it was not measured.
        tensors: Every stored matrix, in the order of the graph.
        errors_missing: Why no matrix was compared with its float weights; empty where they were.
        calibration: On which texts the weights were rounded; None where they alone decided.
    """

    subject: Subject
    weights: Weights
    accuracy: Accuracy | None
    sizes: Sizes
    coverage: Coverage
    tensors: tuple[TensorFigures, ...]
    errors_missing: str
    calibration: CalibrationRecord | None
    speed: Speed | None
    machine: Machine

    def __post_init__(self) -> None:
        measured = any(tensor.sensitivity_nats is not None for tensor in self.tensors)
        if self.weights == "random" and (self.accuracy is not None or measured):
            raise EvaluationError(
                f"{self.subject.name} has random weights, which have no accuracy; "
                "give a trained checkpoint to measure one"
            )


def make_report(  # noqa: PLR0913 - one argument for each thing that is measured
    manifest: Manifest,
    *,
    accuracy: Accuracy | None,
    speed: Speed | None,
    machine: Machine,
    errors: Mapping[str, float] = NOTHING,
    errors_missing: str = "",
    sensitivity: Mapping[str, float] = NOTHING,
    calibration: CalibrationRecord | None = None,
) -> Report:
    """Join what was measured with what the manifest says.

    Args:
        manifest: Of the bundle.
        accuracy: None where it was not measured.
        speed: None where it was not measured.
        machine: Where it was measured.
        errors: Relative squared error by name of the stored matrix.
        errors_missing: Why there are none.
        sensitivity: Mean KL divergence in nats that rounding one matrix alone costs, by name.
        calibration: On which texts the weights were rounded.

    Raises:
        EvaluationError: An accuracy is given for random weights.
    """
    return Report(
        subject=_subject(manifest),
        weights=manifest.weights,
        accuracy=accuracy,
        sizes=measure_sizes(manifest),
        coverage=measure_coverage(manifest.quantization),
        tensors=list_tensors(manifest.quantization, errors, sensitivity),
        errors_missing=errors_missing,
        calibration=calibration,
        speed=speed,
        machine=machine,
    )


def to_json(report: Report) -> str:
    """Write the report with sorted keys; what was not measured is null."""
    return json.dumps(figures_of(report), indent=2, sort_keys=True, allow_nan=False) + "\n"


def figures_of(report: Report) -> dict[str, object]:
    """Return the report in the types of JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "bundle": dataclasses.asdict(report.subject),
        "weights": report.weights,
        **_accuracy_figures(report.accuracy),
        **_size_figures(report.sizes),
        "coverage": dataclasses.asdict(report.coverage) | {"sentence": report.coverage.sentence()},
        "tensors": [dataclasses.asdict(tensor) for tensor in report.tensors],
        "errors_missing": report.errors_missing,
        "calibration": dataclasses.asdict(report.calibration) if report.calibration else None,
        "speed": dataclasses.asdict(report.speed) if report.speed else None,
        "machine": dataclasses.asdict(report.machine),
    }


def _subject(manifest: Manifest) -> Subject:
    stored = manifest.quantization
    return Subject(
        name=manifest.name,
        family=manifest.family,
        variant=manifest.variant,
        precision=manifest.precision,
        target=manifest.target,
        scheme=stored.scheme,
        bits=stored.bits,
        block_size=stored.block_size,
        method=stored.method,
        smoothing=stored.smoothing,
        calibrator=stored.calibrator,
    )


def _accuracy_figures(accuracy: Accuracy | None) -> dict[str, object]:
    if accuracy is None:
        return _drop_figures(None) | {"texts": [], "ladder": None, "continuations": []}
    drops = accuracy.by_text or (accuracy.drop,) * len(accuracy.texts)
    return _drop_figures(accuracy.drop) | {
        "texts": [
            dataclasses.asdict(text) | {"drop": _drop_figures(drop)}
            for text, drop in zip(accuracy.texts, drops, strict=True)
        ],
        "ladder": dataclasses.asdict(accuracy.ladder) if accuracy.ladder else None,
        "continuations": [dataclasses.asdict(one) for one in accuracy.continuations],
    }


def _drop_figures(drop: Drop | None) -> dict[str, object]:
    figures = dataclasses.asdict(drop) if drop else dict.fromkeys(_names(Drop))
    return figures | {
        "reference": {"model": REFERENCE, "ppl": figures.pop("reference_ppl")},
        "candidate": {"ppl": figures.pop("candidate_ppl")},
        "ppl_ratio": drop and drop.ppl_ratio,
        "kl_nats": figures["kl_nats"] or dict.fromkeys(_names(Divergence)),
    }


def _names(record: type[Drop | Divergence]) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def _size_figures(sizes: Sizes) -> dict[str, object]:
    return {
        "size_bytes": sizes.total_bytes,
        "size_by_file": sizes.by_file,
        "size_by_part": sizes.by_part,
        "cache_bytes_per_token": sizes.cache_bytes_per_token,
        "matrices": {
            "size_bytes": sizes.matrices_bytes,
            "float16_bytes": sizes.matrices_fp16_bytes,
            "bits_per_weight": sizes.bits_per_weight,
        },
    }
