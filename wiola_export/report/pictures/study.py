"""The picture of a study: many bundles, of which only the best of their size have names."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from wiola_export.report.figures import MIB
from wiola_export.report.pictures.bundle import Point, unbeaten
from wiola_export.report.pictures.canvas import (
    ACCENT,
    MUTED,
    PAPER,
    WIDTH_INCHES,
    above_zero,
    draw,
    powers_of_ten,
    short,
)

HEIGHT_INCHES = 4.6


def scatter(key: str, points: Sequence[Point]) -> str:
    """Draw divergence over size; the line joins the bundles that none beats, which are named."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        best = unbeaten(points)
        others = [point for point in points if point not in best]
        axes.plot(*_places(others), "o", color=MUTED, alpha=0.55, markersize=4.5)
        axes.plot(
            *_places(best), color=ACCENT, linewidth=1, linestyle=(0, (3, 2)), alpha=0.7,
            drawstyle="steps-post",
        )  # fmt: skip
        for point in best:
            if point.interval is not None:
                ends = [above_zero(point.interval.low), above_zero(point.interval.high)]
                axes.plot(
                    [point.size_bytes / MIB] * 2, ends, color=ACCENT, alpha=0.35, linewidth=5,
                    solid_capstyle="round",
                )  # fmt: skip
        axes.plot(*_places(best), "o", color=ACCENT, markersize=8, markeredgecolor=PAPER)
        for point in best:
            place = (point.size_bytes / MIB, above_zero(point.kl_nats))
            axes.annotate(
                short(point.name), place, (8, 4), textcoords="offset points", fontsize=8.5,
            )  # fmt: skip
        axes.set_yscale("log")
        axes.margins(x=0.2, y=0.1)
        powers_of_ten(axes.yaxis)
        axes.set_xlabel("size of the bundle, MiB")
        axes.set_ylabel("mean KL divergence, nats")

    return draw(f"{key}-frontier", (WIDTH_INCHES, HEIGHT_INCHES), paint)


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return (
        [point.size_bytes / MIB for point in points],
        [above_zero(point.kl_nats) for point in points],
    )
