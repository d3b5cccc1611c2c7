"""What a report says about accuracy: the drop, its steps, its texts, positions and replies."""

from collections.abc import Callable, Iterator

from wiola_export.evaluate.bootstrap import Interval
from wiola_export.evaluate.drop import Drop
from wiola_export.evaluate.ladder import Ladder, Rung, RungName
from wiola_export.report.document import Block, Section, Table
from wiola_export.report.figures import code, fixed, percent, points, scientific, span
from wiola_export.report.report import Accuracy
from wiola_export.report.verdict import conversion, difference

RATIO_DIGITS, LADDER_DIGITS = 4, 5


def accuracy_sections(accuracy: Accuracy, precision: str) -> Iterator[Section]:
    """Yield the sections of a bundle that was compared with its checkpoint."""
    drop = accuracy.drop
    first = difference(drop)
    yield Section("accuracy", "Accuracy", (f"{first[0].upper()}{first[1:]}.", _figures(drop)))
    if accuracy.ladder:
        blocks: tuple[Block, ...] = (
            conversion(accuracy.ladder),
            _ladder(accuracy.ladder, precision),
        )
        yield Section("ladder", "Where the loss comes from", blocks)
    if accuracy.by_text:
        yield Section("texts", "Text by text", (_texts(accuracy),))
    yield Section("positions", "Over the context", (_positions(drop),))
    if accuracy.continuations:
        yield Section("continuations", "What it writes", tuple(_continuations(accuracy)))


def _figures(drop: Drop) -> Table:
    kl, change, ends = drop.kl_nats, drop.probability_change, drop.intervals
    rows = (
        _row("perplexity of the float reference", drop.reference_ppl, ends.reference_ppl, fixed(3)),
        _row("perplexity of this bundle", drop.candidate_ppl, ends.candidate_ppl, fixed(3)),
        _row("ratio of the perplexities", drop.ppl_ratio, ends.ppl_ratio, fixed(5)),
        _row("KL divergence in nats, mean", kl.mean, ends.kl_nats, scientific),
        _row("— median", kl.median, None, scientific),
        _row("— 90th percentile", kl.p90, None, scientific),
        _row("— 99th percentile", kl.p99, None, scientific),
        _row("— 99.9th percentile", kl.p999, None, scientific),
        _row("— largest", kl.max, None, scientific),
        _row("same most likely token", drop.top1_agreement, ends.top1_agreement, percent),
        _row("five most likely tokens shared", drop.top5_agreement, ends.top5_agreement, percent),
        _row(
            "right token's probability, mean change", change.mean, ends.probability_change, points
        ),
        _row("— root mean square", change.rms, None, points),
        _row("— 1st percentile", change.p1, None, points),
        _row("— 10th percentile", change.p10, None, points),
        _row("— median", change.median, None, points),
        _row("— 90th percentile", change.p90, None, points),
        _row("— 99th percentile", change.p99, None, points),
    )
    return Table(("", "value", "95 % interval"), rows)


def _row(
    name: str, value: float, ends: Interval | None, write: Callable[[float], str]
) -> tuple[str, str, str]:
    return name, write(value), span(ends, write) if ends else ""


def _ladder(ladder: Ladder, precision: str) -> Table:
    names = rung_names(ladder, precision)
    head = (
        "form of the model",
        "perplexity",
        "compared with",
        "ratio",
        "95 % interval",
        "KL, nats",
        "same token",
    )
    return Table(head, tuple(_rung(rung, names) for rung in ladder.rungs))


def rung_names(ladder: Ladder, precision: str) -> dict[RungName, str]:
    """Name the rungs as people call them."""
    floats = {"fp32": "float32", "fp16": "float16"}[ladder.precision]
    return {
        "checkpoint": "checkpoint, computed in float32",
        "float16": "weights rounded to float16",
        "graph": f"ONNX graph in {floats}",
        "bundle": f"this bundle, {precision.upper()}",
    }


def _rung(rung: Rung, names: dict[RungName, str]) -> tuple[str, ...]:
    name, ppl = names[rung.name], f"{rung.ppl:.3f}"
    if rung.compared_with is None or rung.ppl_ratio is None:
        return (name, ppl, "", "", "", "", "")
    assert rung.kl_nats is not None
    assert rung.top1_agreement is not None
    return (
        *(name, ppl, names[rung.compared_with].partition(",")[0]),
        *(
            fixed(LADDER_DIGITS)(rung.ppl_ratio),
            span(rung.ppl_ratio_interval, fixed(LADDER_DIGITS)),
        ),
        *(scientific(rung.kl_nats), percent(rung.top1_agreement)),
    )


def _texts(accuracy: Accuracy) -> Table:
    head = (
        "text",
        "tokens",
        "reference",
        "bundle",
        "ratio",
        "95 % interval",
        "KL, nats",
        "same token",
    )
    return Table(
        head,
        tuple(
            (
                *(code(text.name), f"{drop.tokens:,}"),
                *(f"{drop.reference_ppl:.3f}", f"{drop.candidate_ppl:.3f}"),
                fixed(RATIO_DIGITS)(drop.ppl_ratio),
                span(drop.intervals.ppl_ratio, fixed(RATIO_DIGITS)),
                *(scientific(drop.kl_nats.mean), percent(drop.top1_agreement)),
            )
            for text, drop in zip(accuracy.texts, accuracy.by_text, strict=True)
        ),
    )


def _positions(drop: Drop) -> Table:
    return Table(
        ("tokens before", "same most likely token", "KL, nats"),
        tuple(
            (
                f"{b.start} to {b.stop - 1}" if b.stop - b.start > 1 else str(b.start),
                *(percent(b.top1_agreement), scientific(b.kl_nats)),
            )
            for b in drop.positions
        ),
    )


def _continuations(accuracy: Accuracy) -> Iterator[Block]:
    same = sum(one.same_tokens == one.tokens for one in accuracy.continuations)
    yield (
        f"{len(accuracy.continuations)} starts of windows, continued greedily by the float graph "
        f"and by this bundle: {same} of them alike to the end. A text that differs is not worse: "
        "after the first different token the two go their own ways."
    )
    yield from accuracy.continuations
