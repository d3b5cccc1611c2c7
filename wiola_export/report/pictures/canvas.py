"""Draw with matplotlib, and hand out SVG that takes colours and fonts from the page around it.

A colour is drawn as a number that stands for a variable of the style sheet, so that one picture
serves light and dark pages. The same figures give the same bytes.
"""

import io
import math
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

INK, MUTED, FAINT, PAPER = "#010101", "#010102", "#010103", "#010104"
ACCENT, WARM = "#010105", "#010106"
SERIES = tuple(f"#0101{number:02x}" for number in range(0x11, 0x19))
_VARIABLES = {
    INK: "ink", MUTED: "muted", FAINT: "faint", PAPER: "paper", ACCENT: "accent", WARM: "warm",
    **{colour: f"series-{number}" for number, colour in enumerate(SERIES, start=1)},
}  # fmt: skip
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # names are no formulas
    "xtick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.color": FAINT,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 8.5,
}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PACKAGE, STYLE_SHEET = "wiola_export.report", "templates/page.css"
# Pictures have the width of the page's text; a row of bars has this height.
WIDTH_INCHES = 7.2
ROW_INCHES = 0.36
FIRST_RULE = "* {"  # what is before it are the variables
FINE_DECADES = 1.5
SMALLEST_NATS = 1e-10
LONGEST_NAME = 32
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def draw(key: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> str:
    """Paint a figure of some inches and return it as an element `svg`.

    Args:
        key: Makes the ids inside the picture differ from those of others on the page.
        size: Width and height in inches; on the page the width is that of its column.
        paint: Puts axes on the figure and draws in them.
    """
    with rc_context(_STYLE | {"svg.hashsalt": key}), io.StringIO() as file:
        figure = Figure(size, layout="constrained")
        paint(figure)
        figure.savefig(file, format="svg", metadata=_METADATA)
        text = file.getvalue()
    return _for_page(text[text.index("<svg") :], key)


def _for_page(svg: str, key: str) -> str:
    """Take colours, fonts and width from the page, and keep ids apart from other pictures'."""
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(f": {colour}", f": var(--{variable})")
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(\bid=\"|href=\"#|url\(#)", rf"\g<1>{key}-", svg)
    return svg.strip()


def standalone(svg: str) -> str:
    """Make a picture a file of its own: with the colours of the page, light and dark."""
    css = resources.files(PACKAGE).joinpath(STYLE_SHEET).read_text(encoding="utf-8")
    variables = css[: css.index(FIRST_RULE)]
    style = f"<style>{variables}* {{ stroke-linejoin: round; stroke-linecap: butt; }}</style>"
    paper = '<rect width="100%" height="100%" style="fill: var(--paper)"/>'
    return re.sub(r"<svg[^>]*>", lambda found: f"{found[0]}{style}{paper}", svg, count=1) + "\n"


def colours(count: int) -> list[str]:
    """Return a colour for each of several things; one alone has the accent."""
    return [ACCENT] if count == 1 else [SERIES[i % len(SERIES)] for i in range(count)]


def short(name: str) -> str:
    """Cut a name that would leave no room for the picture."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def grid_of_x(axes: Axes) -> None:
    """Let lines stand on the values of x instead of lying on those of y."""
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def above_zero(nats: float) -> float:
    """Return a value that a logarithmic axis can show; nothing at all stands at its lower end."""
    return max(nats, SMALLEST_NATS)


def powers_of_ten(axis: Axis) -> None:
    """Label a logarithmic axis at whole powers of ten, or finely where it spans hardly one."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0,) if decades > FINE_DECADES else (1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: power_of_ten(value))


def power_of_ten(value: float) -> str:
    """Write 0.0005 as 5·10⁻⁴."""
    mantissa, exponent = f"{value:.0e}".split("e")
    power = f"10{str(int(exponent)).translate(_RAISED)}"
    return power if mantissa == "1" else f"{mantissa}·{power}"
