"""The texts in a file, one after the other, in pieces that fit in memory."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from wiola_calibration.corpus import Text, piece_is_full
from wiola_calibration.errors import CorpusError

SURROGATE = re.compile("[\ud800-\udfff]")
# What a message shows of an object that lacks the key.
SHOWN_KEYS = 5
SHOWN_CHARACTERS = 40


class Piece(NamedTuple):
    """Part of one text; `first` where a text begins."""

    content: str
    first: bool


def between_blank_lines(text: Text) -> Iterator[Piece]:
    """Yield the texts that blank lines separate, without the line end behind each.

    Raises:
        CorpusError: A line is not UTF-8, or longer than 1 MiB.
    """
    lines: list[str] = []
    size = 0
    first = True
    for line in text.lines():
        if not line.strip():
            if lines:
                yield Piece("".join(lines).rstrip("\r\n"), first)
            lines, size, first = [], 0, True
            continue
        if piece_is_full(size, line):
            yield Piece("".join(lines), first)
            lines, size, first = [], 0, False
        lines.append(line)
        size += len(line)
    if lines:
        yield Piece("".join(lines).rstrip("\r\n"), first)


def in_objects(text: Text, key: str) -> Iterator[Piece]:
    """Yield the text of each line, a JSON object, that is more than white space.

    Raises:
        CorpusError: A line is not UTF-8, longer than 1 MiB, or no object with a text.
    """
    for number, line in enumerate(text.lines(), start=1):
        if not line.strip():
            continue
        content = _text_of(line, key, where=f"{text.path}, line {number}")
        if content.strip():
            yield Piece(content, first=True)


def _text_of(line: str, key: str, *, where: str) -> str:
    try:
        entry = json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        raise CorpusError(
            f"{where}, column {error.colno} is no JSON ({error.msg}); give one object a line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CorpusError(
            f"{where} is too deep or too large a JSON value; give one object a line"
        ) from error
    if not isinstance(entry, dict):
        raise CorpusError(f"{where} is no JSON object; give one object a line")
    if key not in entry:
        raise CorpusError(f"{where} has no key {key!r}, {_keys(entry)}; name the key of the text")
    content = entry[key]
    if not isinstance(content, str):
        raise CorpusError(f"{where}: {key!r} is no string; name the key of the text")
    if SURROGATE.search(content):
        raise CorpusError(f"{where}: {key!r} has half a surrogate pair; write whole characters")
    return content


def _keys(entry: dict[str, object]) -> str:
    names = [repr(name[:SHOWN_CHARACTERS]) for name in sorted(entry)[:SHOWN_KEYS]]
    return f"only {', '.join(names)}" if names else "and no other"
