"""Calibration files: two packaged ones by name, or `.txt` and `.jsonl` files of the user.

A file holds any number of texts. In a `.txt` file a blank line separates them; in a `.jsonl` file
each line is an object with one. Files are read in pieces: memory stays the same however long they
are.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wiola_calibration.corpus import CORPORA, PACKAGED, PIECE_BYTES, Text, open_text
from wiola_calibration.errors import CorpusError

TEXT_KEY = "text"
SUFFIXES = (".txt", ".jsonl")


class Piece(NamedTuple):
    """Part of one text; `first` where a text begins."""

    content: str
    first: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFile:
    """A file of texts.

    Attributes:
        text: The file, with its name and hash.
        text_key: Where a line of a `.jsonl` file has its text; None for a `.txt` file.
    """

    text: Text
    text_key: str | None = None

    def pieces(self) -> Iterator[Piece]:
        """Yield the texts in order, in pieces: of about 64 KiB, or of one line if that is longer.

        The line end behind a text is no part of it. A text of nothing but white space is none.

        Raises:
            CorpusError: A line is not UTF-8, longer than 1 MiB, or no object with a text.
        """
        if self.text_key is None:
            return _between_blank_lines(self.text)
        return _in_objects(self.text, self.text_key)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFiles:
    """What to calibrate on, in the order of reading.

    Attributes:
        files: At least one; each holds at least one text.
        skipped: Names of what else the user's folder holds.
    """

    files: tuple[CalibrationFile, ...]
    skipped: tuple[str, ...] = ()


def packaged_calibration(name: str | None = None) -> CalibrationFiles:
    """Return one packaged calibration corpus, or all of them.

    They share no paragraph with the packaged texts to measure on.

    Raises:
        CorpusError: There is no corpus of that name.
    """
    if name is not None and name not in PACKAGED:
        raise CorpusError(
            f"no packaged calibration corpus {name!r}; there are {', '.join(sorted(PACKAGED))}; "
            "or give a .txt or .jsonl file, or a folder of them"
        )
    return CalibrationFiles(
        files=tuple(
            CalibrationFile(
                text=open_text(
                    CORPORA / f"{known}_calibration.txt", name=known, description=description
                )
            )
            for known, description in PACKAGED.items()
            if name in {None, known}
        )
    )


def user_calibration(path: Path, *, text_key: str | None = None) -> CalibrationFiles:
    """Return a user's file, or the `.txt` and `.jsonl` files of a folder, sorted by name.

    Each file is read to its end, so that what is wrong with it is known before work begins.

    Args:
        path: A file or a folder; folders in it are not entered.
        text_key: Where a line of a `.jsonl` file has its text; "text" if None.

    Raises:
        CorpusError: There is no such file, or one of the files cannot be used.
    """
    paths, skipped = _found(path)
    if text_key is not None and not any(_is_jsonl(one) for one in paths):
        raise CorpusError(
            f"the text key {text_key!r} has no effect: {path} gives no .jsonl file; leave it out"
        )
    return CalibrationFiles(
        files=tuple(_checked(one, text_key or TEXT_KEY) for one in paths), skipped=skipped
    )


def _found(path: Path) -> tuple[list[Path], tuple[str, ...]]:
    if not path.is_dir():
        if path.suffix.lower() not in SUFFIXES:
            raise CorpusError(f"{path} is no calibration file; give a .txt or .jsonl file")
        return [path], ()
    entries = sorted(path.iterdir(), key=lambda entry: entry.name)
    paths = [entry for entry in entries if entry.suffix.lower() in SUFFIXES and not entry.is_dir()]
    if not paths:
        raise CorpusError(f"{path} holds no .txt and no .jsonl file; give a folder that does")
    return paths, tuple(entry.name for entry in entries if entry not in paths)


def _is_jsonl(path: Path) -> bool:
    return path.suffix.lower() == ".jsonl"


def _checked(path: Path, text_key: str) -> CalibrationFile:
    if not path.is_file():
        raise CorpusError(f"{path} not found; give a .txt or .jsonl file, or a folder of them")
    file = CalibrationFile(
        text=open_text(path, name=path.name, description=""),
        text_key=text_key if _is_jsonl(path) else None,
    )
    texts = sum(piece.first for piece in file.pieces())
    if texts == 0:
        raise CorpusError(f"{path} is empty; give a file with at least one text")
    return file


def _between_blank_lines(text: Text) -> Iterator[Piece]:
    lines: list[str] = []
    size = 0
    first = True
    for line in text.lines():
        if line.isspace():
            if lines:
                yield Piece("".join(lines).rstrip("\r\n"), first)
            lines, size, first = [], 0, True
            continue
        # White space belongs to one token with what is before it; do not cut there.
        if size >= PIECE_BYTES and not line[:1].isspace():
            yield Piece("".join(lines), first)
            lines, size, first = [], 0, False
        lines.append(line)
        size += len(line)
    if lines:
        yield Piece("".join(lines).rstrip("\r\n"), first)


def _in_objects(text: Text, key: str) -> Iterator[Piece]:
    for number, line in enumerate(text.lines(), start=1):
        if line.isspace():
            continue
        content = _text_of(line, key, f"{text.path}, line {number}")
        if content and not content.isspace():
            yield Piece(content, first=True)


def _text_of(line: str, key: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where} is no JSON ({error}); give one object a line") from error
    if not isinstance(entry, dict):
        raise CorpusError(f"{where} is no JSON object; give one object a line")
    if key not in entry:
        found = ", ".join(map(repr, sorted(entry))) or "none"
        raise CorpusError(f"{where} has no key {key!r} (found: {found}); name the key of the text")
    content = entry[key]
    if not isinstance(content, str):
        raise CorpusError(
            f"{where}: {key!r} is of type {type(content).__name__}, expected a string; "
            "name the key of the text"
        )
    if not content.isascii() and any("\ud800" <= letter <= "\udfff" for letter in content):
        raise CorpusError(f"{where}: {key!r} holds half a surrogate pair; write whole characters")
    return content
