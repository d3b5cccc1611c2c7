"""Calibration files: two packaged ones by name, or `.txt` and `.jsonl` files of the user.

A file holds any number of texts. In a `.txt` file a blank line separates them; in a `.jsonl` file
each line is an object with one. Files are read in pieces: memory stays the same however long they
are.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from wiola_calibration.corpus import CORPORA, PACKAGED, Text, open_text
from wiola_calibration.documents import Piece, between_blank_lines, in_objects
from wiola_calibration.errors import CorpusError

TEXT_KEY = "text"
SUFFIXES = (".txt", ".jsonl")


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
        """Yield the texts in order, in pieces of about 64 Ki characters, or of one longer line.

        A text of nothing but white space is none.

        Raises:
            CorpusError: A line is not UTF-8, longer than 1 MiB, or no object with a text.
        """
        if self.text_key is None:
            return between_blank_lines(self.text)
        return in_objects(self.text, self.text_key)


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
    """Return the files to read and the names of those to skip."""
    if path.is_dir():
        return _found_in(path)
    if not path.is_file():
        raise CorpusError(f"{path} not found; give a .txt or .jsonl file, or a folder of them")
    if not _is_wanted(path):
        raise CorpusError(f"{path} is no .txt and no .jsonl file; rename it if it is text")
    return [path], ()


def _found_in(folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    wanted: list[Path] = []
    skipped: list[str] = []
    for entry in sorted(folder.iterdir()):
        if _is_wanted(entry) and not entry.is_dir():
            wanted.append(entry)
        else:
            skipped.append(entry.name)
    if not wanted:
        raise CorpusError(f"{folder} holds no .txt and no .jsonl file; give a folder that does")
    return wanted, tuple(skipped)


def _is_wanted(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _is_jsonl(path: Path) -> bool:
    return path.suffix.lower() == ".jsonl"


def _checked(path: Path, text_key: str) -> CalibrationFile:
    file = CalibrationFile(
        text=open_text(path, name=path.name, description=""),
        text_key=text_key if _is_jsonl(path) else None,
    )
    if sum(1 for _ in file.pieces()) == 0:
        raise CorpusError(f"{path} is empty; give a file with at least one text")
    return file
