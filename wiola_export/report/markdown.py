"""The report as people read it; it says nothing that the JSON does not."""

from collections.abc import Iterable, Iterator, Sequence

from wiola_calibration.packing import TextRecord
from wiola_export.evaluate.speed import Speed
from wiola_export.report.coverage import Coverage, KeptMatrix
from wiola_export.report.figures import percent, scientific, seconds, significant, size
from wiola_export.report.report import REFERENCE, Accuracy, Report, Subject
from wiola_export.report.size import Sizes

RANDOM_WEIGHTS = "Random weights: no accuracy can be stated."
LISTED_MATRICES = 20


def to_markdown(report: Report) -> str:
    """Write the report: verdict, one table, sizes, coverage, how it was measured."""
    sections = [
        f"# Report on {report.subject.name}",
        f"**{verdict(report)}**",
        _table(("", "value"), _figures(report)),
        "## Size",
        *_sizes(report),
        "## Coverage",
        *_coverage(report.coverage),
        "## How it was measured",
        _bullets(_method(report)),
    ]
    return "\n\n".join(sections) + "\n"


def verdict(report: Report) -> str:
    """Say in one or two sentences what the bundle keeps and what it takes."""
    sizes, precision = report.sizes, report.subject.precision.upper()
    takes = f"The bundle takes {size(sizes.total_bytes)}"
    if sizes.bits_per_weight is not None:
        takes += f", {significant(sizes.bits_per_weight)} bits per weight of its matrices"
    if report.weights == "random":
        return f"{RANDOM_WEIGHTS} {takes}."
    if report.accuracy is None:
        return f"Accuracy was not measured. {takes}."
    drop = report.accuracy.drop
    return (
        f"{precision} keeps {percent(drop.top1_agreement)} of the float model's most likely "
        f"tokens; perplexity {drop.reference_ppl:.2f} → {drop.candidate_ppl:.2f} "
        f"(ratio {drop.ppl_ratio:.4f}). {takes}."
    )


def _figures(report: Report) -> Iterator[tuple[str, str]]:
    if report.accuracy is not None:
        yield from _accuracy_rows(report.accuracy)
    yield "size on disk", size(report.sizes.total_bytes)
    if report.speed is not None:
        yield from _speed_rows(report.speed)


def _accuracy_rows(accuracy: Accuracy) -> Iterator[tuple[str, str]]:
    drop = accuracy.drop
    kl = drop.kl_nats
    yield "perplexity of the float reference", f"{drop.reference_ppl:.3f}"
    yield "perplexity of this bundle", f"{drop.candidate_ppl:.3f}"
    yield "ratio of the perplexities", f"{drop.ppl_ratio:.5f}"
    yield "KL divergence, mean", f"{scientific(kl.mean)} nats"
    yield "KL divergence, median", f"{scientific(kl.median)} nats"
    yield "KL divergence, 99th percentile", f"{scientific(kl.p99)} nats"
    yield "KL divergence, largest", f"{scientific(kl.max)} nats"
    yield "same most likely token", percent(drop.top1_agreement)


def _speed_rows(speed: Speed) -> Iterator[tuple[str, str]]:
    first = f"first token of a prompt of {speed.prefill_tokens} tokens"
    yield "load", seconds(speed.load_seconds)
    yield first, seconds(speed.first_token_seconds)
    yield "reading the prompt", f"{significant(speed.prefill_tokens_per_second)} tokens/s"
    yield "generating", f"{significant(speed.decode_tokens_per_second)} tokens/s"
    peak = "unknown" if speed.peak_memory_bytes is None else size(speed.peak_memory_bytes)
    yield "peak memory of the process", peak


def _sizes(report: Report) -> Iterator[str]:
    sizes = report.sizes
    yield _size_table(sizes)
    if report.coverage.quantized and sizes.matrices_bytes >= sizes.matrices_fp16_bytes:
        yield "The matrices are no smaller than in float16: this scheme does not pay here."


def _size_table(sizes: Sizes) -> str:
    files = [(f"file: {name}", count) for name, count in sizes.by_file.items() if count]
    parts = [(f"weights: {name}", count) for name, count in sizes.by_part.items()]
    rows = [(name, size(count)) for name, count in files + parts]
    if sizes.matrices_fp16_bytes:
        rows.append(("all matrices", size(sizes.matrices_bytes)))
        rows.append(("all matrices in float16", size(sizes.matrices_fp16_bytes)))
    return _table(("part", "size"), rows)


def _coverage(coverage: Coverage) -> Iterator[str]:
    sentence = coverage.sentence()
    widths = sorted(coverage.by_bits.items(), key=lambda item: int(item[0]))
    counts = ", ".join(f"{count} at {bits} bits" for bits, count in widths)
    yield f"{sentence[0].upper()}{sentence[1:]}." + (f" By width: {counts}." if counts else "")
    if coverage.kept:
        yield _bullets(_kept_lines(coverage.kept))


def _kept_lines(kept: Sequence[KeptMatrix]) -> Iterator[str]:
    for matrix in kept[:LISTED_MATRICES]:
        shape = " x ".join(map(str, matrix.shape))
        yield f"`{matrix.name}` ({shape}), {matrix.bits} bits: {matrix.reason}"
    if len(kept) > LISTED_MATRICES:
        yield f"and {len(kept) - LISTED_MATRICES} more, listed in `report.json`"


def _method(report: Report) -> Iterator[str]:
    subject, machine = report.subject, report.machine
    yield f"Bundle: {_scheme(subject)}, target `{subject.target}`."
    if report.accuracy is not None:
        yield from _accuracy_method(report.accuracy, is_demo=subject.variant == "demo")
    if report.speed is not None:
        yield _speed_method(report.speed)
    features = f" ({', '.join(machine.features)})" if machine.features else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield f"Machine: {machine.cpu}{features}, {machine.logical_cpus} CPUs, {machine.system}."
    yield f"Versions: {versions}."


def _scheme(subject: Subject) -> str:
    name = f"{subject.precision.upper()}, scheme `{subject.scheme}`"
    if subject.precision in ("fp32", "fp16"):
        return name
    block = f"blocks of {subject.block_size}" if subject.block_size else "one scale per row"
    return f"{name}, {subject.bits} bits, {block}"


def _accuracy_method(accuracy: Accuracy, *, is_demo: bool) -> Iterator[str]:
    drop = accuracy.drop
    yield f"Reference: {REFERENCE}. The bundle ran with the runtime that ships."
    yield (
        f"{drop.tokens:,} predicted tokens: {drop.windows} windows of {drop.context} tokens, "
        "no overlap, each scored with nothing before it."
    )
    for text in accuracy.texts:
        yield _text_line(text)
    if not is_demo and any(text.description for text in accuracy.texts):
        yield (
            "A packaged text may be unlike what this model was trained on: judge its "
            "perplexities with that in mind, or measure on a text of your own."
        )


def _text_line(text: TextRecord) -> str:
    what = f", {text.description}" if text.description else ""
    end = "read to its end" if text.complete else "its start"
    used = text.windows * text.context
    return (
        f"Text `{text.name}`{what}: {end}, "
        f"{used:,} of {text.tokens:,} tokens read fill windows; SHA-256 `{text.sha256}`."
    )


def _speed_method(speed: Speed) -> str:
    threads = f"{speed.threads} threads" if speed.threads else "ONNX Runtime's own threads"
    return (
        f"Speed: a process of its own, {speed.provider}, {threads}; medians of {speed.repeats} "
        f"after a warm-up; a prompt of {speed.prefill_tokens} tokens, then "
        f"{speed.decode_tokens} tokens one at a time; loading measured once."
    )


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---:|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)])


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
