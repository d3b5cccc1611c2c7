"""Texts are read as they stand, and what cannot be read is named."""

import hashlib
import re
from pathlib import Path

import pytest

from wiola_calibration import PACKAGED, CorpusError, packaged_text, user_text
from wiola_calibration.corpus import MAX_LINE_BYTES, PIECE_CHARACTERS

README = Path(__file__).parents[2] / "calibration" / "README.md"


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_a_packaged_text_is_the_one_that_the_readme_describes(name):
    text = packaged_text(name)
    content = text.path.read_bytes()

    row = next(line for line in README.read_text().splitlines() if f"| `{name}` |" in line)
    assert hashlib.sha256(content).hexdigest() == text.sha256
    assert f"`{text.sha256}`" in row
    assert f"| {len(content.splitlines())} | {len(content)} |" in row
    assert text.path.name in row


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_the_pieces_of_a_text_are_the_text(name):
    text = packaged_text(name)
    pieces = list(text.pieces())

    assert "".join(pieces) == text.path.read_text(encoding="utf-8")
    assert len(pieces) > 1


def test_an_unknown_packaged_text_is_refused():
    message = "no packaged text 'gutenberg'; there are austen, kjv; or give a text file"
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        packaged_text("gutenberg")


def test_a_user_text_keeps_blank_lines_and_line_ends(tmp_path):
    content = "\ufeffOne.\r\n\r\n  Two é 😀\n\nThree"
    text = user_text(written(tmp_path / "mine.txt", content))

    assert "".join(text.pieces()) == content.removeprefix("\ufeff")
    assert (text.name, text.description) == ("mine.txt", "")


def test_pieces_are_not_cut_before_white_space(tmp_path):
    line = "x" * 999 + "\n"
    text = user_text(written(tmp_path / "long.txt", (line + "\n" * 7 + " y\n") * 200))

    pieces = list(text.pieces())

    assert "".join(pieces) == text.path.read_text()
    assert len(pieces) == 4
    assert all(not piece[0].isspace() for piece in pieces)
    assert all(len(piece) < PIECE_CHARACTERS + 2000 for piece in pieces)


@pytest.mark.parametrize("content", ["", "\n", " \t\r\n\n", "\ufeff"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = written(tmp_path / "empty.txt", content)

    message = f"{path} is empty; give a text file with at least one paragraph"
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        user_text(path)


def test_what_is_not_utf8_is_named_by_line_and_byte(tmp_path):
    path = written(tmp_path / "latin.txt", "fine é\ncaf".encode() + b"\xe9 au lait\n")

    message = (
        f"{path}, line 2, byte 4: found 0xe9, expected UTF-8; convert the file, e.g. with iconv"
    )
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        user_text(path)


def test_a_line_beyond_the_limit_is_refused_before_it_is_held(tmp_path):
    path = written(tmp_path / "one_line.txt", b"ok\n" + b"x" * (MAX_LINE_BYTES + 1))

    message = (
        f"{path}, line 2 is longer than 1048576 bytes; break it into paragraphs, e.g. with fold -s"
    )
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        user_text(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"none\.txt not found; give a UTF-8 text file$"):
        user_text(tmp_path / "none.txt")
    with pytest.raises(CorpusError, match=f"{re.escape(str(tmp_path))} is a folder; give a"):
        user_text(tmp_path)
