"""Pictures of what was lost: how large divergences are, where they lie, and what is certain."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wiola_export.evaluate.bootstrap import Interval
from wiola_export.evaluate.drop import Divergence, Drop, histogram_borders
from wiola_export.report.pictures.canvas import (
    ACCENT,
    INK,
    MUTED,
    PAPER,
    ROW_INCHES,
    WIDTH_INCHES,
    above_zero,
    colours,
    draw,
    grid_of_x,
    powers_of_ten,
)

LEAST_AGREEMENT_SHOWN = 0.01


def divergences(key: str, drops: Mapping[str, Drop]) -> str:
    """Draw how many tokens diverge how far."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, (name, drop) in zip(colours(len(drops)), drops.items(), strict=True):
            shares = np.array(drop.kl_nats.histogram) / drop.tokens
            axes.stairs(shares, histogram_borders(), color=colour, linewidth=1.6, label=name)
            if len(drops) == 1:
                axes.stairs(shares, histogram_borders(), color=colour, fill=True, alpha=0.18)
                _mark(axes, drop.kl_nats)
        axes.set_xscale("log")
        axes.set_xlim(*_used_range([drop.kl_nats for drop in drops.values()]))
        axes.margins(y=0.14)
        axes.set_ylim(bottom=0)
        powers_of_ten(axes.xaxis)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f} %")
        axes.set_xlabel("KL divergence of a token, nats")
        axes.set_ylabel("share of the tokens")
        if len(drops) > 1:
            figure.legend(loc="outside upper left", ncols=3)

    return draw(f"{key}-divergences", (WIDTH_INCHES, 2.8), paint)


def _mark(axes: Axes, kl: Divergence) -> None:
    """Mark three figures of the table in the histogram."""
    marks = {"median": kl.median, "mean": kl.mean, "99 %": kl.p99}
    sides = (("right", -3), ("left", 3), ("left", 3))  # median and mean are often neighbours
    for (side, offset), (name, nats) in zip(sides, marks.items(), strict=True):
        value = max(nats, float(histogram_borders()[0]))  # as the first bin does
        axes.axvline(value, color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.annotate(
            name, (value, 1), (offset, -1), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", fontsize=8.5, verticalalignment="top",
            horizontalalignment=side,
        )  # fmt: skip


def _used_range(divergences: Sequence[Divergence]) -> tuple[float, float]:
    """Return the borders between which there are tokens, with a bin to spare on either side."""
    used = np.flatnonzero(np.sum([kl.histogram for kl in divergences], axis=0))
    borders = histogram_borders()
    return borders[max(used[0] - 1, 0)], borders[min(used[-1] + 2, len(borders) - 1)]


def positions(key: str, drops: Mapping[str, Drop]) -> str:
    """Draw agreement and divergence over the tokens that a prediction has before it."""

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, sharex=True)
        for colour, (name, drop) in zip(colours(len(drops)), drops.items(), strict=True):
            middles = [(b.start + b.stop - 1) / 2 for b in drop.positions]
            agreement = [b.top1_agreement for b in drop.positions]
            nats = [b.kl_nats if len(drops) == 1 else above_zero(b.kl_nats) for b in drop.positions]
            above.plot(middles, agreement, color=colour, marker="o", markersize=3.5, label=name)
            below.plot(middles, nats, color=colour, marker="o", markersize=3.5)
        lowest = min(b.top1_agreement for drop in drops.values() for b in drop.positions)
        above.set_ylim(lowest - max((1 - lowest) / 3, LEAST_AGREEMENT_SHOWN), 1)
        above.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")
        above.set_ylabel("same token")
        below.margins(y=0.15)
        if len(drops) > 1:  # whose divergences may be powers of ten apart
            below.set_yscale("log")
            powers_of_ten(below.yaxis)
        else:
            below.set_ylim(bottom=0)
            below.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
        below.set_ylabel("KL, nats")
        below.set_xlabel("tokens before the prediction")
        below.set_xlim(left=0)
        figure.align_ylabels()
        if len(drops) > 1:
            figure.legend(*above.get_legend_handles_labels(), loc="outside upper left", ncols=3)

    return draw(f"{key}-positions", (WIDTH_INCHES, 3.6), paint)


def ratios(key: str, rows: Sequence[tuple[str, float, Interval | None]]) -> str:
    """Draw ratios of perplexities with their intervals beside 1, where nothing is lost."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (_, ratio, ends) in enumerate(rows):
            if ends is not None:
                axes.plot(
                    [ends.low, ends.high], [place, place], color=ACCENT, alpha=0.35,
                    linewidth=6, solid_capstyle="round",
                )  # fmt: skip
            axes.plot(ratio, place, "o", color=ACCENT, markersize=7, markeredgecolor=PAPER)
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.spines["left"].set_visible(False)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.set_xlabel("perplexity as a multiple of the reference's, with 95 % interval")
        grid_of_x(axes)

    return draw(f"{key}-ratios", (WIDTH_INCHES, 0.8 + ROW_INCHES * len(rows)), paint)
