"""What a report says about the bundle itself: speed, size, matrices, and how it was measured."""

from collections.abc import Iterator, Sequence

from wiola_calibration.packing import TextRecord
from wiola_calibration.record import CalibrationRecord
from wiola_export.evaluate.bootstrap import FEWEST_WINDOWS, RESAMPLES
from wiola_export.evaluate.ladder import Ladder
from wiola_export.evaluate.speed import Speed
from wiola_export.options import DEMOS
from wiola_export.report.coverage import Coverage, KeptMatrix
from wiola_export.report.document import Block, Bullets, Section, Table
from wiola_export.report.figures import code, plain, scientific, seconds, significant, size
from wiola_export.report.report import REFERENCE, Accuracy, Report, Subject
from wiola_export.report.size import Sizes
from wiola_export.report.tensors import TensorFigures

LISTED_MATRICES = 20
WORST_MATRICES = 10
DOES_NOT_PAY = "The matrices are no smaller than in float16: this scheme does not pay here."


def bundle_sections(report: Report) -> Iterator[Section]:
    """Yield the sections that every report has."""
    if report.speed is not None:
        table = Table(("", "value"), tuple(_speed(report.speed)))
        yield Section("speed", "Speed and memory", (table,))
    yield Section("size", "Size", tuple(_sizes(report)))
    yield Section("matrices", "Matrices", tuple(_matrices(report)))
    yield Section("method", "How it was measured", (Bullets(tuple(_method(report))),))


def _speed(speed: Speed) -> Iterator[tuple[str, str]]:
    first = f"first token of a prompt of {speed.prefill_tokens} tokens"
    yield "load", seconds(speed.load_seconds)
    yield first, seconds(speed.first_token_seconds)
    yield "reading the prompt", f"{significant(speed.prefill_tokens_per_second)} tokens/s"
    yield "generating", f"{significant(speed.decode_tokens_per_second)} tokens/s"
    peak = "unknown" if speed.peak_memory_bytes is None else size(speed.peak_memory_bytes)
    yield "peak memory of the process", peak


def _sizes(report: Report) -> Iterator[Block]:
    sizes = report.sizes
    yield Table(("part", "size", "share"), tuple(_size_rows(sizes)))
    if report.coverage.quantized and sizes.matrices_bytes >= sizes.matrices_fp16_bytes:
        yield DOES_NOT_PAY


def _size_rows(sizes: Sizes) -> Iterator[tuple[str, str, str]]:
    files = [(f"file: {name}", count) for name, count in sizes.by_file.items() if count]
    parts = [(f"weights: {plain(name)}", count) for name, count in sizes.by_part.items()]
    for name, count in files + parts:
        yield name, size(count), f"{count / sizes.total_bytes:.1%}".replace("%", " %")
    if sizes.matrices_fp16_bytes:
        yield "all matrices", size(sizes.matrices_bytes), ""
        yield "all matrices in float16", size(sizes.matrices_fp16_bytes), ""
    yield "the whole bundle", size(sizes.total_bytes), "100 %"
    yield "keys and values in memory, a token", size(sizes.cache_bytes_per_token), ""


def _matrices(report: Report) -> Iterator[Block]:
    coverage = report.coverage
    sentence = coverage.sentence()
    widths = sorted(coverage.by_bits.items(), key=lambda item: int(item[0]))
    counts = ", ".join(f"{count} at {bits} bits" for bits, count in widths)
    yield f"{sentence[0].upper()}{sentence[1:]}." + (f" By width: {counts}." if counts else "")
    if coverage.kept:
        yield Bullets(tuple(_kept(coverage)))
    yield from _worst(report.tensors)
    if report.errors_missing:
        yield f"Stored weights were not compared with the float ones: {report.errors_missing}."


def _kept(coverage: Coverage) -> Iterator[str]:
    kept: Sequence[KeptMatrix] = coverage.kept
    for matrix in kept[:LISTED_MATRICES]:
        shape = " x ".join(map(str, matrix.shape))
        yield f"{code(matrix.name)} ({shape}), {matrix.bits} bits: {matrix.reason}"
    if len(kept) > LISTED_MATRICES:
        yield f"and {len(kept) - LISTED_MATRICES} more, listed in `report.json`"


def _worst(tensors: Sequence[TensorFigures]) -> Iterator[Block]:
    measured = [tensor for tensor in tensors if tensor.relative_error]
    if not measured:
        return
    sensitive = any(tensor.sensitivity_nats is not None for tensor in tensors)
    worst = sorted(measured, key=_concern, reverse=True)[:WORST_MATRICES]
    order = "matter most to the model" if sensitive else "lost most"
    yield f"The table has the {len(worst)} that {order}; all {len(tensors)} are in `report.json`."
    head = (
        "matrix",
        "bits",
        "block",
        "size",
        "squared error",
        *(("sensitivity, nats",) * sensitive),
    )
    yield Table(head, tuple(_worst_row(tensor, sensitive=sensitive) for tensor in worst))


def _concern(tensor: TensorFigures) -> tuple[float, float]:
    return tensor.sensitivity_nats or 0.0, tensor.relative_error or 0.0


def _worst_row(tensor: TensorFigures, *, sensitive: bool) -> tuple[str, ...]:
    assert tensor.relative_error is not None
    nats = tensor.sensitivity_nats
    cells = (
        *(code(tensor.name), str(tensor.bits), str(tensor.block_size or "row")),
        *(size(tensor.size_bytes), scientific(tensor.relative_error)),
    )
    return (*cells, "–" if nats is None else scientific(nats)) if sensitive else cells


def _method(report: Report) -> Iterator[str]:
    subject, machine = report.subject, report.machine
    yield f"Bundle: {_scheme(subject)}, target `{subject.target}`."
    if report.calibration is not None:
        yield from _calibration(report.calibration)
    if report.accuracy is not None:
        yield from _accuracy(report.accuracy, is_demo=subject.variant in DEMOS)
    if any(tensor.relative_error is not None for tensor in report.tensors):
        yield (
            "Squared error: stored weights read back from the graph, less the float ones, squared "
            "and summed, as a share of the float ones squared and summed."
        )
    if report.speed is not None:
        yield _timing(report.speed)
    features = f" ({', '.join(machine.features)})" if machine.features else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield f"Machine: {machine.cpu}{features}, {machine.logical_cpus} CPUs, {machine.system}."
    yield f"Versions: {versions}."


def _scheme(subject: Subject) -> str:
    name = f"{subject.precision.upper()}, scheme {code(subject.scheme)}"
    if subject.precision in ("fp32", "fp16"):
        return name
    block = f"blocks of {subject.block_size}" if subject.block_size else "one scale per row"
    parts = [f"{subject.bits} bits", block]
    if subject.method is not None:
        parts.append(f"rounded by {code(subject.method)}")
    if subject.smoothing is not None:
        parts.append(f"activations smoothed with strength {subject.smoothing:g}")
    if subject.calibrator is not None:
        parts.append(f"their ranges found by {code(subject.calibrator)}")
    return f"{name}, {', '.join(parts)}"


def _accuracy(accuracy: Accuracy, *, is_demo: bool) -> Iterator[str]:
    drop = accuracy.drop
    yield f"Reference: {REFERENCE}. The bundle ran with the runtime that ships."
    yield (
        f"{drop.tokens:,} predicted tokens: {drop.windows} windows of {drop.context} tokens, "
        "no overlap, each scored with nothing before it."
    )
    if drop.intervals.ppl_ratio is not None:
        yield (
            f"Intervals: {RESAMPLES:,} resamples of the windows of each text, reference and bundle "
            "drawn together; percentiles expanded for few windows."
        )
    else:
        yield f"Intervals need at least {FEWEST_WINDOWS} windows."
    if accuracy.ladder:
        yield from _ladder(accuracy.ladder, drop.windows)
    for text in accuracy.texts:
        yield _text(text)
    if not is_demo and any(text.description for text in accuracy.texts):
        yield (
            "A packaged text may be unlike what this model was trained on: judge its "
            "perplexities with that in mind, or measure on a text of your own."
        )


def _ladder(ladder: Ladder, windows: int) -> Iterator[str]:
    which = "the same windows" if ladder.windows == windows else f"{ladder.windows} of the windows"
    yield f"The steps from checkpoint to bundle were measured on {which}."
    if ladder.graph_missing:
        yield f"No graph without quantization: {ladder.graph_missing}."


def _text(text: TextRecord) -> str:
    what = f", {text.description}" if text.description else ""
    end = "read to its end" if text.complete else "its start"
    used = text.windows * text.context
    return (
        f"Text {code(text.name)}{what}: {end}, "
        f"{used:,} of {text.tokens:,} tokens read fill windows; SHA-256 `{text.sha256}`."
    )


def _calibration(record: CalibrationRecord) -> Iterator[str]:
    files = ", ".join(f"{code(file.name)} (SHA-256 `{file.sha256[:12]}…`)" for file in record.files)
    yield (
        f"Calibration: {record.used_windows:,} of {record.windows:,} windows of {record.context} "
        f"tokens, chosen with seed {record.seed}, from {files}."
    )
    yield from record.warnings


def _timing(speed: Speed) -> str:
    threads = f"{speed.threads} threads" if speed.threads else "ONNX Runtime's own threads"
    return (
        f"Speed: a process of its own, {speed.provider}, {threads}; medians of {speed.repeats} "
        f"after a warm-up; a prompt of {speed.prefill_tokens} tokens, then "
        f"{speed.decode_tokens} tokens one at a time; loading measured once."
    )
