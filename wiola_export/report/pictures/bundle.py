"""Pictures of bundles: what is large in them, which matrices lost how much, what size buys."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from wiola_export.evaluate.bootstrap import Interval
from wiola_export.report.figures import MIB, size
from wiola_export.report.pictures.canvas import (
    ACCENT,
    INK,
    MUTED,
    PAPER,
    ROW_INCHES,
    SERIES,
    WIDTH_INCHES,
    above_zero,
    colours,
    draw,
    grid_of_x,
    powers_of_ten,
)
from wiola_export.report.size import Sizes

LEAST_DECADES = 1.0  # values that are nearly equal shall look nearly equal
FAINTEST, STRONGEST = 0.08, 0.95
DARK_CELL = 0.7
WIDEST_WITH_TEXT = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One matrix of a heat map; a column of None stretches over all of them."""

    row: str
    column: int | None
    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One bundle of the frontier: its size and its mean divergence."""

    name: str
    size_bytes: int
    kl_nats: float
    interval: Interval | None


def heat_map(key: str, cells: Sequence[Cell]) -> str:
    """Draw a value above 0 of every matrix by layer and kind; its logarithm is the depth."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = 1 + max((cell.column for cell in cells if cell.column is not None), default=0)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        depth = _depths([cell.value for cell in cells])
        for cell, alpha in zip(cells, depth, strict=True):
            left, width = (0, columns) if cell.column is None else (cell.column, 1)
            place = rows.index(cell.row)
            corner, extent = (left + 0.03, place + 0.05), (width - 0.06, 0.9)
            axes.add_patch(Rectangle(corner, *extent, color=ACCENT, alpha=alpha, linewidth=0))
            if columns <= WIDEST_WITH_TEXT:
                axes.text(
                    left + width / 2, place + 0.53, f"{cell.value:.1e}", fontsize=8,
                    color=PAPER if alpha > DARK_CELL else INK,
                    horizontalalignment="center", verticalalignment="center",
                )  # fmt: skip
        _frame(axes, rows, columns)

    return draw(key, (WIDTH_INCHES, 0.7 + ROW_INCHES * len(rows)), paint)


def _depths(values: Sequence[float]) -> list[float]:
    """Return how deep each value, all above 0, is coloured; equal ones are in the middle."""
    logs = [math.log10(value) for value in values]
    middle, half = (max(logs) + min(logs)) / 2, max(max(logs) - min(logs), LEAST_DECADES) / 2
    shares = [(log - middle + half) / (2 * half) for log in logs]
    return [FAINTEST + (STRONGEST - FAINTEST) * share for share in shares]


def _frame(axes: Axes, rows: Sequence[str], columns: int) -> None:
    step = math.ceil(columns / WIDEST_WITH_TEXT)
    layers = range(0, columns, step)
    axes.set_xlim(0, columns)
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([layer + 0.5 for layer in layers], [str(layer) for layer in layers])
    axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("layer")


def parts_of(sizes: Sizes) -> dict[str, int]:
    """Return what is in a bundle, weights by part of the model."""
    files = {name: count for name, count in sizes.by_file.items() if name != "weights" and count}
    return {**sizes.by_part, **files}


def size_by_part(key: str, bundles: Mapping[str, Sizes]) -> str:
    """Draw what takes how much; below, the same with matrices in float16."""
    bars = {name: parts_of(sizes) for name, sizes in bundles.items()}
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, bar in enumerate(bars.values()):
            left = 0.0
            for part, count in bar.items():
                colour = SERIES[parts.index(part) % len(SERIES)]
                label = part if place == 0 else None
                axes.barh(place, count / MIB, 0.62, left, color=colour, label=label)
                left += count / MIB
            _write_beside(axes, left, place)
        names = [*bars, "in float16"]
        half = _in_float16(next(iter(bundles.values())))
        axes.barh(len(bars), half / MIB, 0.62, fill=False, edgecolor=MUTED, linestyle=(0, (3, 2)))
        _write_beside(axes, half / MIB, len(bars))
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.14)
        axes.set_xlim(left=0)
        axes.set_xlabel("MiB")
        grid_of_x(axes)
        figure.legend(loc="outside upper left", ncols=4, handlelength=0.9, handleheight=0.9)

    return draw(f"{key}-size", (WIDTH_INCHES, 1.5 + ROW_INCHES * len(bars)), paint)


def _write_beside(axes: Axes, mib: float, place: int) -> None:
    """Write the length of a bar at its end."""
    axes.annotate(
        size(round(mib * MIB)), (mib, place), (5, 0), textcoords="offset points",
        verticalalignment="center",
    )  # fmt: skip


def _in_float16(sizes: Sizes) -> int:
    return sizes.total_bytes - sizes.matrices_bytes + sizes.matrices_fp16_bytes


def frontier(key: str, points: Sequence[Point]) -> str:
    """Draw divergence over size; the line joins the bundles that none beats in both."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        best = unbeaten(points)
        axes.plot(
            [p.size_bytes / MIB for p in best], [above_zero(p.kl_nats) for p in best], color=MUTED,
            linewidth=1, linestyle=(0, (3, 2)), drawstyle="steps-post",
        )  # fmt: skip
        order = sorted(points, key=lambda p: p.size_bytes)
        for colour, point in zip(colours(len(points)), points, strict=True):
            x = point.size_bytes / MIB
            if point.interval is not None:
                ends = [above_zero(point.interval.low), above_zero(point.interval.high)]
                axes.plot([x, x], ends, color=colour, alpha=0.4, linewidth=5,
                          solid_capstyle="round")  # fmt: skip
            axes.plot(
                x, above_zero(point.kl_nats), "o", color=colour, markersize=8, markeredgecolor=PAPER
            )
            above = order.index(point) % 2 == 0  # neighbours write on different sides
            axes.annotate(
                point.name, (x, above_zero(point.kl_nats)), (7, 6 if above else -13),
                textcoords="offset points",
            )  # fmt: skip
        axes.set_yscale("log")
        axes.margins(x=0.25, y=0.15)
        powers_of_ten(axes.yaxis)
        axes.set_xlabel("size of the bundle, MiB")
        axes.set_ylabel("mean KL divergence, nats")

    return draw(f"{key}-frontier", (WIDTH_INCHES, 3.4), paint)


def unbeaten(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other is both smaller and closer than, smallest first."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.size_bytes, p.kl_nats)):
        if not found or point.kl_nats < found[-1].kl_nats:
            found.append(point)
    return found
