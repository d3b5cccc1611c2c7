"""The report as a record, and the JSON that machines compare.

The same bundle, text and machine give the same bytes, except under `speed`.
"""

import dataclasses
import json

from wiola_calibration.packing import TextRecord
from wiola_export.errors import EvaluationError
from wiola_export.evaluate.accuracy import Drop
from wiola_export.evaluate.machine import Machine
from wiola_export.evaluate.speed import Speed
from wiola_export.report.coverage import Coverage, measure_coverage
from wiola_export.report.size import Sizes, measure_sizes
from wiola_runtime.manifest import Manifest, Precision, Target, Weights

SCHEMA_VERSION = 1
FILE_NAME = "report.json"
REFERENCE = "the checkpoint with weights rounded to float16, computed in float32"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the report is about.

    Attributes:
        scheme: Name of the quantization scheme, with the bits and the block of most matrices.
    """

    name: str
    family: str
    variant: str | None
    precision: Precision
    target: Target
    scheme: str
    bits: int
    block_size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What was lost against the reference, and on which texts."""

    drop: Drop
    texts: tuple[TextRecord, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was measured on one bundle.

    Attributes:
        accuracy: None where it was not measured; always None for random weights.
        speed: None where it was not measured.
    """

    subject: Subject
    weights: Weights
    accuracy: Accuracy | None
    sizes: Sizes
    coverage: Coverage
    speed: Speed | None
    machine: Machine

    def __post_init__(self) -> None:
        if self.weights == "random" and self.accuracy is not None:
            raise EvaluationError(
                f"{self.subject.name} has random weights, which have no accuracy; "
                "give a trained checkpoint to measure one"
            )


def make_report(
    manifest: Manifest, *, accuracy: Accuracy | None, speed: Speed | None, machine: Machine
) -> Report:
    """Join what was measured with what the manifest says.

    Raises:
        EvaluationError: An accuracy is given for random weights.
    """
    quantization = manifest.quantization
    return Report(
        subject=Subject(
            name=manifest.name,
            family=manifest.family,
            variant=manifest.variant,
            precision=manifest.precision,
            target=manifest.target,
            scheme=quantization.scheme,
            bits=quantization.bits,
            block_size=quantization.block_size,
        ),
        weights=manifest.weights,
        accuracy=accuracy,
        sizes=measure_sizes(manifest),
        coverage=measure_coverage(quantization),
        speed=speed,
        machine=machine,
    )


def to_json(report: Report) -> str:
    """Write the report with sorted keys; what was not measured is null."""
    figures = {
        "schema_version": SCHEMA_VERSION,
        "bundle": dataclasses.asdict(report.subject),
        "weights": report.weights,
        **_accuracy_figures(report.accuracy),
        **_size_figures(report.sizes),
        "coverage": dataclasses.asdict(report.coverage) | {"sentence": report.coverage.sentence()},
        "speed": dataclasses.asdict(report.speed) if report.speed else None,
        "machine": dataclasses.asdict(report.machine),
    }
    return json.dumps(figures, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _accuracy_figures(accuracy: Accuracy | None) -> dict[str, object]:
    drop = accuracy.drop if accuracy else None
    texts = accuracy.texts if accuracy else ()
    return {
        "reference": {"model": REFERENCE, "ppl": drop and drop.reference_ppl},
        "candidate": {"ppl": drop and drop.candidate_ppl},
        "ppl_ratio": drop and drop.ppl_ratio,
        "kl_nats": dataclasses.asdict(drop.kl_nats)
        if drop
        else dict.fromkeys(("mean", "median", "p99", "max")),
        "top1_agreement": drop and drop.top1_agreement,
        "tokens": drop and drop.tokens,
        "windows": drop and drop.windows,
        "context": drop and drop.context,
        "texts": [dataclasses.asdict(text) for text in texts],
    }


def _size_figures(sizes: Sizes) -> dict[str, object]:
    return {
        "size_bytes": sizes.total_bytes,
        "size_by_file": sizes.by_file,
        "size_by_part": sizes.by_part,
        "matrices": {
            "size_bytes": sizes.matrices_bytes,
            "float16_bytes": sizes.matrices_fp16_bytes,
            "bits_per_weight": sizes.bits_per_weight,
        },
    }
