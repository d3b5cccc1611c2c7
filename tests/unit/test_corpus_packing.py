"""Windows are equal, and every token is accounted for."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiola_calibration import CorpusError, Text, pack, pack_all, packaged_text, user_text

BOS = 0


def by_character(text):
    return [ord(character) for character in text]


def with_start(text):
    return [BOS, *by_character(text)]


@pytest.fixture(scope="module")
def forty(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "forty.txt"
    path.write_text("abcdefghi\n" * 4)
    return user_text(path)


@given(context=st.integers(2, 40), max_windows=st.integers(1, 30))
def test_windows_are_the_start_of_the_text_and_nothing_is_lost(forty, context, max_windows):
    packed = pack(forty, by_character, context=context, max_windows=max_windows, bos_id=None)
    record = packed.texts[0]
    flat = packed.windows.ravel()

    assert packed.windows.dtype == np.int64
    assert packed.windows.shape == (min(40 // context, max_windows), context)
    assert flat.tolist() == by_character("abcdefghi\n" * 4)[: flat.size]
    assert record.tokens == flat.size + record.dropped_tokens == 40
    assert record.windows == len(packed.windows)


@pytest.mark.parametrize("encode", [by_character, with_start])
def test_the_document_start_is_there_once_whoever_adds_it(encode):
    text = packaged_text("austen")
    packed = pack(text, encode, context=1000, max_windows=1000, bos_id=BOS)

    characters = text.path.read_text(encoding="utf-8")
    assert packed.windows.ravel()[0] == BOS
    assert np.count_nonzero(packed.windows == BOS) == 1
    assert packed.texts[0].tokens == 1 + len(characters)
    assert packed.texts[0].dropped_tokens == (1 + len(characters)) % 1000
    assert packed.texts[0].complete


def test_reading_stops_at_the_limit_and_the_record_says_so():
    seen = []

    def counting(piece):
        seen.append(len(piece))
        return by_character(piece)

    packed = pack(packaged_text("austen"), counting, context=8, max_windows=3, bos_id=None)

    assert packed.windows.shape == (3, 8)
    assert not packed.texts[0].complete
    assert sum(seen) < packaged_text("austen").size_bytes


def test_no_window_spans_two_texts(forty):
    packed = pack_all(
        [forty, packaged_text("kjv")], by_character, context=30, max_windows=2, bos_id=None
    )

    assert [record.windows for record in packed.texts] == [1, 2]
    assert packed.texts[0].dropped_tokens == 10
    assert packed.windows.shape == (3, 30)
    assert "".join(map(chr, packed.windows[1])) == "Let your speech be alway with "


def test_a_record_names_the_file_that_it_is_about(forty):
    record = pack(forty, by_character, context=16, max_windows=9, bos_id=None).texts[0]

    assert (record.name, record.sha256, record.size_bytes) == ("forty.txt", forty.sha256, 40)
    assert (record.windows, record.tokens, record.dropped_tokens) == (2, 40, 8)


def test_a_text_shorter_than_a_window_is_refused(forty):
    message = f"{forty.path} gives 41 tokens, fewer than one window of 256; give a longer text"
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        pack(forty, by_character, context=256, max_windows=4, bos_id=BOS)


@pytest.mark.parametrize(
    ("context", "max_windows", "message"),
    [
        (1, 4, "context is 1; a window needs at least 2 tokens"),
        (16, 0, "max_windows is 0; measure on at least 1 window"),
    ],
)
def test_numbers_out_of_range_are_refused(forty, context, max_windows, message):
    with pytest.raises(CorpusError, match=f"^{message}$"):
        pack(forty, by_character, context=context, max_windows=max_windows, bos_id=None)


def test_no_text_at_all_is_refused():
    with pytest.raises(CorpusError, match=r"^no text to measure on; name a packaged one or"):
        pack_all([], by_character, context=16, max_windows=1, bos_id=None)


def test_texts_are_values(forty):
    assert user_text(forty.path) == forty
    assert isinstance(forty, Text)
