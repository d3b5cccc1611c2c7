"""Numbers as people read them."""

import math
from collections.abc import Callable

from wiola_export.evaluate.bootstrap import Interval

MIB = 1 << 20
KIB = 1 << 10
_HARMLESS = str.maketrans({"`": "'", "|": "/"})


def significant(value: float, digits: int = 3) -> str:
    """Write a number with that many significant digits, thousands separated."""
    text = f"{value:.{digits}g}"
    if "e+" in text:
        return f"{float(text):,.0f}"
    return text


def scientific(value: float) -> str:
    """Write a small number with three significant digits and its power of ten; 0 stays 0."""
    return f"{value:.2e}" if value else "0"


def size(size_bytes: int) -> str:
    """Write a size in the unit that leaves one to four digits before the point."""
    if size_bytes >= MIB:
        return f"{size_bytes / MIB:,.1f} MiB"
    if size_bytes >= KIB:
        return f"{size_bytes / KIB:.1f} KiB"
    return f"{size_bytes} B"


def percent(share: float) -> str:
    """Write a share of 1 with two decimals, rounded down: only all of it is 100 %."""
    return f"{math.floor(round(share * 1e4, 6)) / 100:.2f} %"


def seconds(value: float) -> str:
    """Write a duration in seconds, or in milliseconds where it is below one."""
    return f"{significant(value)} s" if value >= 1 else f"{significant(value * 1000)} ms"


def code(text: str) -> str:
    """Mark a name as code; whatever would end the mark, a table's cell or the line is replaced."""
    return f"`{plain(text)}`"


def plain(text: str) -> str:
    """Replace what a name has no use for: marks of code, ends of cells, what cannot be printed."""
    printable = "".join(character if character.isprintable() else "�" for character in text)
    return printable.translate(_HARMLESS)


def span(ends: Interval | None, write: Callable[[float], str]) -> str:
    """Write the two ends of an interval; a dash where there is none."""
    return f"{write(ends.low)} to {write(ends.high)}" if ends else "–"


def fixed(digits: int) -> Callable[[float], str]:
    """Return what writes a number with that many digits after the point."""
    return lambda value: f"{value:.{digits}f}"


def points(share: float) -> str:
    """Write a difference of shares in percentage points."""
    return f"{share * 100:.3f} pp".replace("-0.000", "0.000").replace("-", "−")
