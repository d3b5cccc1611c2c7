"""The report as people read it; it says nothing that the JSON does not."""

import html
import re
from collections.abc import Iterable, Iterator
from typing import assert_never

from wiola_export.evaluate.greedy import Continuation
from wiola_export.report.document import Block, Bullets, Section, Table
from wiola_export.report.report import Report
from wiola_export.report.sections import sections
from wiola_export.report.verdict import verdict

__all__ = ["to_markdown", "verdict"]

MARKUP = re.compile(r"[\\`*_{}\[\]()#+!|~-]")


def to_markdown(report: Report) -> str:
    """Write the report: verdict, accuracy, speed, size, matrices, how it was measured."""
    title = f"# Report on {report.subject.name}"
    return "\n\n".join([title, f"**{verdict(report)}**", *_sections(sections(report))]) + "\n"


def _sections(found: Iterable[Section], level: int = 2) -> Iterator[str]:
    for section in found:
        yield f"{'#' * level} {section.title}"
        yield from map(_block, section.blocks)


def _block(block: Block) -> str:
    match block:
        case str():
            return block
        case Table():
            return _table(block)
        case Bullets():
            return "\n".join(f"- {line}" for line in block.lines)
        case Continuation():
            return _continuation(block)
        case _:
            assert_never(block)


def _table(table: Table) -> str:
    head, *rows = (f"| {' | '.join(cells)} |" for cells in (table.head, *table.rows))
    return "\n".join([head, f"|---|{'---:|' * (len(table.head) - 1)}", *rows])


def _continuation(one: Continuation) -> str:
    """Quote both texts; one that a model wrote is never read as markup."""
    if one.same_tokens == one.tokens:
        where = f"All {one.tokens} tokens are the same:"
    else:
        where = f"Token {one.same_tokens + 1} of {one.tokens} is the first to differ:"
    lines = [
        where,
        f"- after: {_quoted(one.prompt)}",
        f"- float: {_quoted(one.reference)}",
    ]
    if one.reference != one.candidate:
        lines.append(f"- bundle: {_quoted(one.candidate)}")
    return "\n".join([lines[0], "", *lines[1:]])


def _quoted(text: str) -> str:
    """Put a text in one line, with every sign that Markdown or HTML would read made harmless."""
    line = html.escape(re.sub(r"\s+", " ", text).strip(), quote=False)
    return "“" + MARKUP.sub(r"\\\g<0>", line) + "”"
