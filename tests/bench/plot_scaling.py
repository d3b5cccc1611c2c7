"""Draw docs/bench/scaling-*.json and sizes.json: python plot_scaling.py, without arguments."""

import json
from pathlib import Path

from matplotlib.ticker import ScalarFormatter

from wiola_export import bench
from wiola_export.report.pictures.canvas import (
    ACCENT,
    PAPER,
    WIDTH_INCHES,
    colours,
    draw,
    standalone,
)

FOLDER = Path(__file__).parents[2] / "docs/bench"
HEIGHT_INCHES = 2.6
PLOTS = (
    ("decode_tokens_per_second", "tokens behind which it decodes", "tokens a second", False),
    ("batch_tokens_per_second", "rows decoded together", "tokens a second, all rows", True),
    ("prefill_tokens_per_second", "tokens of the prompt", "tokens a second", True),
    ("memory_bytes", "tokens held", "memory of the process, MB", False),
)


def main():
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("scaling-*.json"))]
    for key, x, y, doubling in PLOTS:
        write(key, lambda axes, key=key: lines(axes, runs, key), (x, y), doubling)
    sizes = bench.from_json((FOLDER / "sizes.json").read_text("utf-8"))
    write("size", lambda axes: by_size(axes, sizes), ("weights a token, MB", "ms a token"), False)


def write(key, paint, labels, doubling):
    def figure_of(figure):
        axes = figure.subplots()
        if doubling:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(ScalarFormatter())
        paint(axes)
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])

    name = key.partition("_")[0]
    svg = standalone(draw(f"scaling-{name}", (WIDTH_INCHES, HEIGHT_INCHES), figure_of))
    (FOLDER / f"scaling-{name}.svg").write_text(svg, encoding="utf-8")


def lines(axes, runs, key):
    scale = 1e-6 if key.endswith("_bytes") else 1
    for run, colour in zip(runs, colours(len(runs)), strict=True):
        x, y = zip(*run[key], strict=True)
        axes.plot(x, [value * scale for value in y], "o-", color=colour, label=run["bundle"])
    axes.legend()


def by_size(axes, sizes):
    for one in sizes.contestants:
        x = one.median("weight_bytes") / 1e6
        y = 1e3 / one.median("decode_tokens_per_second")
        axes.plot([x], [y], "o", color=ACCENT, markersize=8, markeredgecolor=PAPER)
        axes.annotate(one.name, (x, y), (8, -4), textcoords="offset points")
    axes.margins(x=0.25)
    axes.set_xlim(left=0)


if __name__ == "__main__":
    main()
