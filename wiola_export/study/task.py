"""One cell of a study: what it is asked, what came of it, and how a finished one is known again.

All of it is plain data, so that it can be sent to another process or machine and back.
"""

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Self, cast

from wiola_export.errors import OutputError
from wiola_export.evaluate.bootstrap import Interval
from wiola_export.options import ExportOptions
from wiola_export.prepare import table_block_size
from wiola_export.report.report import Report
from wiola_runtime.decode import decode
from wiola_runtime.errors import BundleError
from wiola_runtime.manifest import FILE_NAME, Manifest

Choice = str | int | float | bool | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a cell is made from and measured on, as SHA-256.

    Attributes:
        texts: Measured on, by name.
        calibration: Calibrated on, by name; empty where the weights alone decide.
    """

    checkpoint_sha256: str
    texts: Mapping[str, str]
    calibration: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens a second on the machine that did the cell."""

    prompt_tokens_per_second: float
    reply_tokens_per_second: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured on a bundle; an interval is None where the text has too few windows.

    Attributes:
        kl_nats: Mean divergence of a token from the float model.
        top1_agreement: Share of predictions with the same likeliest token, 0 to 1.
        bits_per_weight: Of the matrices, scales and zero points included.
        size_bytes: Of the files that a host needs.
    """

    kl_nats: float
    kl_nats_interval: Interval | None
    top1_agreement: float
    top1_agreement_interval: Interval | None
    ppl_ratio: float
    ppl_ratio_interval: Interval | None
    bits_per_weight: float | None
    size_bytes: int
    speed: Speed

    @classmethod
    def of(cls, report: Report) -> Self:
        """Take what a study compares from the report of an export of trained weights."""
        assert report.accuracy is not None
        assert report.speed is not None
        drop = report.accuracy.drop
        return cls(
            kl_nats=drop.kl_nats.mean,
            kl_nats_interval=drop.intervals.kl_nats,
            top1_agreement=drop.top1_agreement,
            top1_agreement_interval=drop.intervals.top1_agreement,
            ppl_ratio=drop.ppl_ratio,
            ppl_ratio_interval=drop.intervals.ppl_ratio,
            bits_per_weight=report.sizes.bits_per_weight,
            size_bytes=report.sizes.total_bytes,
            speed=Speed(
                prompt_tokens_per_second=report.speed.prefill_tokens_per_second,
                reply_tokens_per_second=report.speed.decode_tokens_per_second,
            ),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker needs to know to do a cell.

    Attributes:
        options: Of the export; paths are absolute, since a worker has a folder of its own.
        inputs: What the worker must find there.
        record: File that says that the cell is finished.
    """

    name: str
    options: ExportOptions
    inputs: Inputs
    record: Path

    @property
    def choices(self) -> dict[str, Choice]:
        """The options that decide what a bundle holds, defaults filled in; no paths."""
        options, quantization = self.options, self.options.quantization
        texts = options.calibration if options.calibrates else None
        return {
            "precision": quantization.precision,
            "scheme": quantization.resolved_scheme,
            "block_size": quantization.resolved_block_size,
            "table_block_size": table_block_size(quantization),
            "symmetric": quantization.symmetric,
            "method": options.method,
            "smooth": options.smoothing,
            "calibrator": options.calibrator,
            "bits_per_weight": options.budget.bits_per_weight,
            "int8_cache": options.int8_cache,
            "target": options.target,
            "calibration_windows": None if texts is None else texts.windows,
            "calibration_context": None if texts is None else texts.context,
            "calibration_seed": None if texts is None else texts.seed,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a cell: figures, or one line that says why there are none."""

    name: str
    choices: Mapping[str, Choice]
    figures: Figures | None
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What is kept of a finished cell, beside its bundle.

    Attributes:
        manifest_sha256: Of the manifest, which holds the hashes of all other files.
    """

    choices: Mapping[str, Choice]
    inputs: Inputs
    manifest_sha256: str
    figures: Figures


def remember(task: Task, folder: Path, figures: Figures) -> None:
    """Write down that a cell is finished; its bundle must be in place."""
    finished = Finished(
        choices=task.choices,
        inputs=task.inputs,
        manifest_sha256=_sha256(folder / FILE_NAME),
        figures=figures,
    )
    text = json.dumps(dataclasses.asdict(finished), indent=2, sort_keys=True, allow_nan=False)
    replace_file(task.record, text + "\n")


def recall(task: Task) -> Outcome | None:
    """Return what came of a cell that is finished and was asked the same; else None."""
    folder = task.options.out
    assert folder is not None
    try:
        raw = json.loads(task.record.read_text(encoding="utf-8"))
        found = cast("Finished", decode(Finished, raw, task.record.name))
        same = found.manifest_sha256 == _sha256(folder / FILE_NAME)
        checkpoint = Manifest.read(folder).source.checkpoint_sha256
    except (OSError, ValueError, BundleError):
        return None  # absent, cut off or of another version: the cell is done again
    same = same and (found.choices, found.inputs) == (task.choices, task.inputs)
    if not same or checkpoint != task.inputs.checkpoint_sha256:
        return None
    return Outcome(name=task.name, choices=task.choices, figures=found.figures)


def replace_file(path: Path, text: str) -> None:
    """Write a file all at once: a reader sees the old one or the new one.

    Raises:
        OutputError: The place is unusable, or the disk is full.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(text, encoding="utf-8", newline="\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); choose another --out"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
