"""Text files: two packaged ones to measure on, or any UTF-8 file of the user.

A text is read as it stands, every character of it, in pieces of whole lines: memory stays the
same however long the file is.
"""

import codecs
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from wiola_calibration.errors import CorpusError

CORPORA = Path(__file__).with_name("corpora")
MAX_LINE_BYTES = 1 << 20
PIECE_CHARACTERS = 1 << 16
MAX_PIECE_CHARACTERS = 1 << 20

PACKAGED: Mapping[str, str] = MappingProxyType(
    {
        "austen": "19th-century English prose (the six novels of Jane Austen)",
        "kjv": "17th-century English (the King James Bible)",
    }
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text file and what a reader of figures must know about it.

    Attributes:
        name: Name of a packaged text, or the file name of a user's one.
        description: What kind of writing it is; empty where only the user knows.
        sha256: Of the file's bytes.
    """

    name: str
    description: str
    path: Path
    sha256: str
    size_bytes: int

    def pieces(self) -> Iterator[str]:
        """Yield the text in order, in pieces of whole lines of about 64 Ki characters.

        Raises:
            CorpusError: A line is not UTF-8, or longer than 1 MiB.
        """
        piece: list[str] = []
        size = 0
        for line in self.lines():
            if piece_is_full(size, line):
                yield "".join(piece)
                piece, size = [], 0
            piece.append(line)
            size += len(line)
        if piece:
            yield "".join(piece)

    def lines(self) -> Iterator[str]:
        """Yield the text line by line, line ends included, without a byte order mark.

        Raises:
            CorpusError: A line is not UTF-8, or longer than 1 MiB.
        """
        with self.path.open("rb") as file:
            for number, raw in enumerate(_bounded_lines(file, self.path), start=1):
                content = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                yield _decode(content, self.path, number)


def piece_is_full(size: int, line: str) -> bool:
    """Tell whether a piece of `size` characters ends before the next line.

    White space belongs to one token with what is before it: as long as memory allows, no piece
    ends there.
    """
    if line[:1].isspace():
        return size >= MAX_PIECE_CHARACTERS
    return size >= PIECE_CHARACTERS


def packaged_text(name: str) -> Text:
    """Return a text that ships with the package.

    Raises:
        CorpusError: There is no text of that name.
    """
    if name not in PACKAGED:
        raise CorpusError(
            f"no packaged text {name!r}; there are {', '.join(sorted(PACKAGED))}; "
            "or give a text file"
        )
    path = CORPORA / f"{name}_valid.txt"
    return open_text(path, name=name, description=PACKAGED[name])


def user_text(path: Path) -> Text:
    """Return a user's UTF-8 text file.

    Raises:
        CorpusError: There is no such file, or nothing but white space in it.
    """
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "not found"
        raise CorpusError(f"{path} {found}; give a UTF-8 text file")
    text = open_text(path, name=path.name, description="")
    if not any(piece.strip() for piece in text.pieces()):
        raise CorpusError(f"{path} is empty; give a text file with at least one paragraph")
    return text


def open_text(path: Path, *, name: str, description: str) -> Text:
    """Return the text in a file that exists; its bytes are hashed, not judged.

    Raises:
        CorpusError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size_bytes = path.stat().st_size
    except OSError as error:
        raise CorpusError(
            f"{path} cannot be read ({error.strerror}); give a readable file"
        ) from error
    return Text(name=name, description=description, path=path, sha256=digest, size_bytes=size_bytes)


def _bounded_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise CorpusError(
                f"{path}, line {number} is longer than {MAX_LINE_BYTES} bytes; "
                "break it into paragraphs, e.g. with fold -s"
            )
        yield line


def _decode(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}, line {number}, byte {error.start + 1}: found 0x{raw[error.start]:02x}, "
            "expected UTF-8; convert the file, e.g. with iconv"
        ) from error
