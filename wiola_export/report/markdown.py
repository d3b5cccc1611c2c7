"""The report as people read it; it says nothing that the JSON does not."""

import html
import re
from collections.abc import Iterator, Mapping
from typing import assert_never

from wiola_export.evaluate.greedy import Continuation
from wiola_export.report.document import Block, Bullets, Table
from wiola_export.report.overview import overview, overview_title
from wiola_export.report.report import Report
from wiola_export.report.sections import sections
from wiola_export.report.verdict import verdict

__all__ = ["markdown_table", "to_markdown", "to_markdown_all", "verdict"]

MARKUP = re.compile(r"[\\`*_\[\]|~]")


def to_markdown(report: Report) -> str:
    """Write the report: verdict, accuracy, speed, size, matrices, how it was measured."""
    title = f"# Report on {_harmless(report.subject.name)}"
    return "\n\n".join([title, *_body(report, level=2)]) + "\n"


def to_markdown_all(reports: Mapping[str, Report]) -> str:
    """Write several reports by name: an overview, then each as it is written alone."""
    parts = [f"# {overview_title(reports)}", markdown_table(overview(reports))]
    for name, report in reports.items():
        parts += [f"## {_harmless(name)}", *_body(report, level=3)]
    return "\n\n".join(parts) + "\n"


def _body(report: Report, level: int) -> Iterator[str]:
    yield f"**{verdict(report)}**"
    for section in sections(report):
        yield f"{'#' * level} {section.title}"
        yield from map(_block, section.blocks)


def _block(block: Block) -> str:
    match block:
        case str():
            return _inline(block)
        case Table():
            return markdown_table(block)
        case Bullets():
            return "\n".join(f"- {_inline(line)}" for line in block.lines)
        case Continuation():
            return _continuation(block)
        case _:
            assert_never(block)


def markdown_table(table: Table) -> str:
    """Write a table, its figures on the right."""
    head, *rows = (f"| {' | '.join(map(_inline, row))} |" for row in (table.head, *table.rows))
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


def _inline(text: str) -> str:
    """Keep what is marked as code, and let nothing else be read as HTML or as a cell's end."""
    plain_and_code = re.split(r"(`[^`]*`)", text)
    plain_and_code[::2] = [
        html.escape(part, quote=False).replace("|", r"\|") for part in plain_and_code[::2]
    ]
    return "".join(plain_and_code)


def _quoted(text: str) -> str:
    return f"“{_harmless(text)}”"


def _harmless(text: str) -> str:
    """Put a text in one line, with every sign that Markdown or HTML would read made harmless."""
    line = re.sub(r"\s+", " ", "".join(c if c.isprintable() or c.isspace() else "�" for c in text))
    return MARKUP.sub(r"\\\g<0>", html.escape(line.strip(), quote=False))
