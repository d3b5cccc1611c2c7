"""Calibration files are opened whole, read in pieces, and refused by file and line."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiola_calibration import CorpusError, packaged_calibration, user_calibration
from wiola_calibration.corpus import MAX_LINE_BYTES, MAX_PIECE_CHARACTERS, PIECE_CHARACTERS

LINE = st.text(st.sampled_from("abé😀 .\t"), min_size=1).filter(str.strip)
TEXT = st.lists(LINE, min_size=1, max_size=4).map("\n".join)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts(files):
    """Join the pieces of each text."""
    found = []
    for piece in itertools.chain.from_iterable(file.pieces() for file in files.files):
        if piece.first:
            found.append("")
        found[-1] += piece.content
    return found


def refused(path, message, **choices):
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        user_calibration(path, **choices)


@given(contents=st.lists(TEXT, min_size=1, max_size=6), blank=st.sampled_from(["\n", " \n\t\r\n"]))
def test_a_blank_line_separates_the_texts_of_a_txt_file(tmp_path_factory, contents, blank):
    path = tmp_path_factory.mktemp("txt") / "mine.txt"
    path.write_bytes((blank + ("\n" + blank).join(contents) + "\n").encode())

    assert texts(user_calibration(path)) == contents


@given(contents=st.lists(TEXT, min_size=1, max_size=6), key=st.sampled_from([None, "body"]))
def test_a_line_of_a_jsonl_file_holds_one_text(tmp_path_factory, contents, key):
    path = tmp_path_factory.mktemp("jsonl") / "mine.jsonl"
    lines = [json.dumps({"id": 1, key or "text": content}) for content in contents]
    path.write_text("\n\n".join(lines), encoding="utf-8")

    assert texts(user_calibration(path, text_key=key)) == contents


def test_a_text_may_keep_its_outer_white_space_in_jsonl_only(tmp_path):
    content = "\n  One.\r\n\r\nTwo. \n"
    jsonl = written(tmp_path / "a.jsonl", json.dumps({"text": content}))
    txt = written(tmp_path / "a.txt", b"\xef\xbb\xbf" + content.encode())

    assert texts(user_calibration(jsonl)) == [content]
    assert texts(user_calibration(txt)) == ["  One.", "Two. "]


def test_a_long_text_comes_in_pieces_of_whole_lines(tmp_path):
    line = "x" * 999 + "\n"
    path = written(tmp_path / "long.txt", (line * 200 + "\n") * 2)

    pieces = list(user_calibration(path).files[0].pieces())

    assert [piece.first for piece in pieces] == [True, False, False, False] * 2
    assert "".join(piece.content for piece in pieces) == (line * 200)[:-1] * 2
    assert all(len(piece.content) < PIECE_CHARACTERS + 1000 for piece in pieces)


def test_a_text_that_offers_no_place_to_cut_is_cut_at_the_limit(tmp_path):
    path = written(tmp_path / "indented.txt", (" " + "x" * 998 + "\n") * 3000)

    lengths = [len(piece.content) for piece in user_calibration(path).files[0].pieces()]

    assert sum(lengths) == 3_000_000 - 1
    assert len(lengths) == 3
    assert max(lengths) < MAX_PIECE_CHARACTERS + 1000


def test_a_folder_gives_its_files_sorted_and_names_the_others(tmp_path):
    written(tmp_path / "b.txt", "two")
    written(tmp_path / "c.JSONL", '{"text": "three"}')
    written(tmp_path / "a.txt", "one")
    written(tmp_path / "notes.md", "not this")
    (tmp_path / "old.txt").mkdir()

    files = user_calibration(tmp_path)

    assert [file.text.name for file in files.files] == ["a.txt", "b.txt", "c.JSONL"]
    assert texts(files) == ["one", "two", "three"]
    assert files.skipped == ("notes.md", "old.txt")


def test_a_folder_is_refused_for_one_bad_file(tmp_path):
    written(tmp_path / "a.txt", "one")
    bad = written(tmp_path / "b.jsonl", '{"text": "two"}\n{"txt": "three"}\n')

    refused(tmp_path, f"{bad}, line 2 has no key 'text', only 'txt'; name the key of the text")


@pytest.mark.parametrize("content", ["", "\n \t\r\n", "\ufeff", "\ufeff\n"])
@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl"])
def test_a_file_without_a_text_is_refused(tmp_path, name, content):
    path = written(tmp_path / name, content)

    refused(path, f"{path} is empty; give a file with at least one text")


def test_a_jsonl_file_of_empty_texts_is_refused(tmp_path):
    path = written(tmp_path / "empty.jsonl", '{"text": ""}\n{"text": " \\n"}\n')

    refused(path, f"{path} is empty; give a file with at least one text")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"text": "a"',
            ", column 13 is no JSON (Expecting ',' delimiter); give one object a line",
        ),
        ("plain", ", column 1 is no JSON (Expecting value); give one object a line"),
        ("[" * 100_000, " is too deep or too large a JSON value; give one object a line"),
        (
            '{"text": ' + "1" * 5000 + "}",
            " is too deep or too large a JSON value; give one object a line",
        ),
        ('["text"]', " is no JSON object; give one object a line"),
        ("{}", " has no key 'text', and no other; name the key of the text"),
        ('{"b\\n": 1, "a": 2}', " has no key 'text', only 'a', 'b\\n'; name the key of the text"),
        ('{"text": ["a"]}', ": 'text' is no string; name the key of the text"),
        ('{"text": null}', ": 'text' is no string; name the key of the text"),
        (
            '{"text": "a\\ud83d"}',
            ": 'text' has half a surrogate pair; write whole characters",
        ),
    ],
)
def test_a_line_that_is_no_object_with_a_text_is_named(tmp_path, line, message):
    path = written(tmp_path / "bad.jsonl", '{"text": "fine"}\n\n' + line + "\n")

    refused(path, f"{path}, line 3{message}")


def test_a_message_shows_few_keys_and_their_beginnings(tmp_path):
    entry = {f"{number}" * 100: "" for number in range(9)}
    path = written(tmp_path / "wide.jsonl", json.dumps(entry))

    shown = ", ".join(repr(f"{number}" * 40) for number in range(5))
    refused(path, f"{path}, line 1 has no key 'text', only {shown}; name the key of the text")


@pytest.mark.parametrize("name", ["latin.txt", "latin.jsonl"])
def test_what_is_not_utf8_is_named_by_line_and_byte(tmp_path, name):
    good = b'{"text": "fine"}\n'
    path = written(tmp_path / name, good + b'{"text": "caf\xe9"}\n')

    refused(
        path,
        f"{path}, line 2, byte 14: found 0xe9, expected UTF-8; convert the file, e.g. with iconv",
    )


@pytest.mark.parametrize("name", ["huge.txt", "huge.jsonl"])
def test_a_line_beyond_the_limit_is_refused_before_it_is_held(tmp_path, name):
    path = written(tmp_path / name, b'{"text": "fine"}\n' + b"x" * (MAX_LINE_BYTES + 1))

    refused(
        path,
        f"{path}, line 2 is longer than 1048576 bytes; break it into paragraphs, e.g. with fold -s",
    )


def test_what_is_no_calibration_file_is_refused(tmp_path):
    other = written(tmp_path / "notes.md", "text")
    missing = tmp_path / "none.txt"
    link = tmp_path / "folder" / "broken.txt"
    link.parent.mkdir()

    refused(other, f"{other} is no .txt and no .jsonl file; rename it if it is text")
    refused(missing, f"{missing} not found; give a .txt or .jsonl file, or a folder of them")
    refused(link.parent, f"{link.parent} holds no .txt and no .jsonl file; give a folder that does")
    link.symlink_to(missing)
    refused(
        link.parent,
        f"{link} cannot be read (No such file or directory); give a readable file",
    )


def test_a_text_key_without_effect_is_refused(tmp_path):
    path = written(tmp_path / "a.txt", "one")

    refused(
        path,
        f"the text key 'body' has no effect: {path} gives no .jsonl file; leave it out",
        text_key="body",
    )


def test_an_unknown_packaged_corpus_is_refused():
    message = (
        "no packaged calibration corpus 'gutenberg'; there are austen, kjv; "
        "or give a .txt or .jsonl file, or a folder of them"
    )
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        packaged_calibration("gutenberg")
