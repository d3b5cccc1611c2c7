"""A report as headings, sentences and tables; Markdown and HTML are two ways to draw it.

Sentences may mark names as code with backticks, as `figures.code` does; nothing else is markup.
"""

import dataclasses

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.greedy import Continuation


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a head; the first column is text, the others are figures."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise EvaluationError(
                    f"a row has {len(row)} cells under {len(self.head)} headings: {', '.join(row)}"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Bullets:
    """Sentences, one below the other."""

    lines: tuple[str, ...]


Block = str | Table | Bullets | Continuation


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """One heading and what is under it.

    Attributes:
        key: By which pictures find their section.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
