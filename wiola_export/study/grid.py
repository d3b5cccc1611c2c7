"""The cells of a study: every scheme, block size, method and budget worth comparing, by name."""

import dataclasses
import fnmatch
from collections.abc import Iterator, Sequence

from wiola_export.errors import OptionError
from wiola_export.options import Budget, Method, Quantization
from wiola_runtime.manifest import Precision

NO_BUDGET = Budget()
MIXED_BITS = (4.6, 5.0, 5.5, 6.0, 7.0)
EVERY_METHOD: tuple[Method, ...] = ("nearest", "hqq", "gptq", "awq", "awq-gptq")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way to store a checkpoint; its name is that of its folder too."""

    name: str
    quantization: Quantization
    budget: Budget = NO_BUDGET


def _blocks(
    precision: Precision, sizes: Sequence[int], methods: Sequence[Method]
) -> Iterator[Cell]:
    for size in sizes:
        for method in methods:
            yield Cell(
                name=f"{precision}-{method}-{size}",
                quantization=Quantization(precision=precision, block_size=size, method=method),
            )


def _mixed(bits: float) -> Cell:
    """Spend so many bits a weight where they matter most; blocks are rounded by GPTQ."""
    return Cell(
        name=f"mixed-{bits:.1f}",
        quantization=Quantization(precision="int4", method="gptq"),
        budget=Budget(bits_per_weight=bits),
    )


GRID: tuple[Cell, ...] = (
    *_blocks("int8", (32, 64, 128), ("nearest", "gptq")),
    Cell(name="int8-default", quantization=Quantization(precision="int8")),
    Cell(name="int8-dynamic", quantization=Quantization(precision="int8", scheme="dynamic")),
    Cell(name="int8-static", quantization=Quantization(precision="int8", scheme="static")),
    *_blocks("int4", (32, 64), EVERY_METHOD),
    *_blocks("int4", (128,), ("nearest", "gptq")),
    *map(_mixed, MIXED_BITS),
)


def pick(wanted: str | None) -> tuple[Cell, ...]:
    """Return the cells of a list like `int8-dynamic,mixed-*`, in the grid's order; None: all.

    Raises:
        OptionError: A name or pattern fits no cell.
    """
    if wanted is None:
        return GRID
    patterns = [pattern.strip() for pattern in wanted.split(",")]
    names = [cell.name for cell in GRID]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise OptionError(
                f"--schemes: there is no {pattern!r}; there are {', '.join(names)}, "
                "and patterns such as int4-*"
            )
    return tuple(
        cell for cell in GRID if any(fnmatch.fnmatchcase(cell.name, one) for one in patterns)
    )
