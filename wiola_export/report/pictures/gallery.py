"""Which pictures a report has, each under the section that it belongs to."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from wiola_export.evaluate.drop import Drop
from wiola_export.report.overview import unique_names
from wiola_export.report.pictures.accuracy import divergences, positions, ratios
from wiola_export.report.pictures.bundle import Cell, Point, frontier, heat_map, size_by_part
from wiola_export.report.pictures.canvas import short
from wiola_export.report.report import Accuracy, Report
from wiola_export.report.tensors import TensorFigures

Item = TypeVar("Item")
FEWEST_POINTS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """An element `svg` and the sentence under it."""

    svg: str
    caption: str


def pictures(report: Report, key: str) -> Mapping[str, Sequence[Picture]]:
    """Return the pictures of one bundle by the key of their section.

    Args:
        report: What to draw.
        key: Makes ids differ from those of other bundles on the page.
    """
    found: dict[str, list[Picture]] = {"size": [_sizes({report.subject.name: report}, key)]}
    if report.accuracy is not None:
        drop = {report.subject.name: report.accuracy.drop}
        found["accuracy"] = [_ratios(report.accuracy, key), _divergences(drop, key)]
        found["positions"] = [_positions(drop, key)]
    found["matrices"] = list(_heat_maps(report.tensors, key))
    return found


def overview_pictures(named: Mapping[str, Report]) -> Iterator[Picture]:
    """Yield the pictures that show several bundles at once."""
    accuracies = {name: r.accuracy for name, r in named.items() if r.accuracy is not None}
    drops = {name: accuracy.drop for name, accuracy in accuracies.items()}
    if len(drops) >= FEWEST_POINTS:
        yield Picture(
            frontier("all", [_point(name, named[name], drop) for name, drop in drops.items()]),
            "What size buys: further down is closer to the float model, further left is smaller. "
            "No bundle above the dashed line is the best of its size.",
        )
        yield _divergences(drops, "all")
        yield _positions(drops, "all")
    yield _sizes(named, "all")


def _point(name: str, report: Report, drop: Drop) -> Point:
    return Point(short(name), report.sizes.total_bytes, drop.kl_nats.mean, drop.intervals.kl_nats)


def _divergences(drops: Mapping[str, Drop], key: str) -> Picture:
    return Picture(
        divergences(key, _short(drops)),
        "How far the predictions of single tokens are from the float model's; each line to the "
        "right is ten times as far.",
    )


def _positions(drops: Mapping[str, Drop], key: str) -> Picture:
    return Picture(
        positions(key, _short(drops)),
        "Whether the loss grows with the context: a slope would mean that errors add up.",
    )


def _short(named: Mapping[str, Item]) -> dict[str, Item]:
    """Cut long names, and keep them apart."""
    return dict(zip(unique_names([short(name) for name in named]), named.values(), strict=True))


def _ratios(accuracy: Accuracy, key: str) -> Picture:
    drop = accuracy.drop
    rows = [
        ("all texts" if accuracy.by_text else "the text", drop.ppl_ratio, drop.intervals.ppl_ratio)
    ]
    rows += [
        (short(text.name), one.ppl_ratio, one.intervals.ppl_ratio)
        for text, one in zip(accuracy.texts, accuracy.by_text, strict=False)
    ]
    return Picture(
        ratios(key, rows),
        "Perplexity beside the reference's. Where a bar touches the line at 1, no difference is "
        "shown.",
    )


def _sizes(reports: Mapping[str, Report], key: str) -> Picture:
    sizes = _short({name: report.sizes for name, report in reports.items()})
    return Picture(
        size_by_part(key, sizes), "What takes how much; dashed, the same with float16 matrices."
    )


def _heat_maps(tensors: Sequence[TensorFigures], key: str) -> Iterator[Picture]:
    errors = [Cell(short(t.kind), t.layer, t.relative_error) for t in tensors if t.relative_error]
    if errors:
        yield Picture(
            heat_map(f"{key}-error", errors),
            "Squared error of the stored weights as a share of the squared float weights; deeper "
            "is worse.",
        )
    nats = [Cell(short(t.kind), t.layer, t.sensitivity_nats) for t in tensors if t.sensitivity_nats]
    if nats:
        yield Picture(
            heat_map(f"{key}-sensitivity", nats),
            "What rounding one matrix alone costs in nats; deeper matters more to the model.",
        )
