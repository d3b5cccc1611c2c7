"""A calibration set packs short texts, loses no token silently, and says what it is made of."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from wiola_calibration import (
    PACKAGED,
    CorpusError,
    Sampling,
    Tokenization,
    calibration_set,
    packaged_calibration,
    packaged_text,
    user_calibration,
    user_text,
)

BOS, EOS = 1, 2
DEMO_TOKENIZER = Path(__file__).parents[2] / "wiola_export/demo/tokenizer.json"


def by_character(text):
    return [ord(letter) for letter in text]


def with_both_ends(text):
    return [BOS, *by_character(text), EOS]


CHARACTERS = Tokenization(encode=by_character, bos_id=BOS, eos_id=EOS)
WORDS = Tokenization(encode=lambda text: [len(word) for word in text.split()])


def written(path, content):
    path.write_bytes(content.encode())
    return path


def test_texts_stand_between_their_marks_and_share_windows(tmp_path):
    path = written(tmp_path / "mine.txt", "abc\n\nd\n\nef\ngh\n")

    made = calibration_set(user_calibration(path), CHARACTERS, Sampling(context=5, max_windows=9))

    joined = [BOS, *by_character("abc"), EOS, BOS, ord("d"), EOS, BOS, *by_character("ef\ngh"), EOS]
    assert made.windows.ravel().tolist() == joined[:15]
    assert made.record.tokens == len(joined) == 15
    assert made.record.texts == 3


@pytest.mark.parametrize("encode", [by_character, with_both_ends])
def test_marks_are_there_once_whoever_adds_them(tmp_path, encode):
    path = written(tmp_path / "mine.txt", "ab\n\n" * 20)
    tokenization = Tokenization(encode=encode, bos_id=BOS, eos_id=EOS)

    made = calibration_set(user_calibration(path), tokenization, Sampling(context=4, max_windows=9))

    assert made.windows.tolist() == [[BOS, ord("a"), ord("b"), EOS]] * 9


@given(
    contents=st.lists(st.text("ab ", min_size=1).filter(str.strip), min_size=1, max_size=12),
    files=st.integers(1, 3),
    context=st.integers(2, 30),
    max_windows=st.integers(1, 12),
    marks=st.tuples(st.sampled_from([None, BOS]), st.sampled_from([None, EOS])),
)
def test_every_token_is_accounted_for(
    tmp_path_factory, contents, files, context, max_windows, marks
):
    folder = tmp_path_factory.mktemp("texts")
    for number in range(files):
        lines = [json.dumps({"text": content}) for content in contents]
        written(folder / f"{number}.jsonl", "\n".join(lines))
    tokenization = Tokenization(encode=by_character, bos_id=marks[0], eos_id=marks[1])
    each = sum(map(len, contents)) + len(contents) * sum(mark is not None for mark in marks)
    sampling = Sampling(context=context, max_windows=max_windows)
    opened = user_calibration(folder)
    if files * each < context:
        with pytest.raises(CorpusError, match=f" give {files * each} tokens, fewer than one "):
            calibration_set(opened, tokenization, sampling)
        return

    made = calibration_set(opened, tokenization, sampling)

    record = made.record
    dropped = record.unsampled_tokens + record.remainder_tokens
    assert [file.tokens for file in record.files] == [each] * files
    assert [file.texts for file in record.files] == [len(contents)] * files
    assert record.texts == files * len(contents)
    assert record.tokens == files * each == made.windows.size + dropped
    assert made.windows.shape == (record.used_windows, context)
    assert record.windows == record.tokens // context
    assert record.used_windows == min(record.windows, max_windows)
    assert record.remainder_tokens == record.tokens % context


def test_a_record_says_what_was_read_and_how(tmp_path):
    content = "one two three\n\nfour five\n"
    written(tmp_path / "mine.txt", content)
    written(tmp_path / "notes.md", "skipped")

    made = calibration_set(
        user_calibration(tmp_path), WORDS, Sampling(context=2, max_windows=1, seed=7)
    )

    assert dataclasses.asdict(made.record) == {
        "files": (
            {
                "name": "mine.txt",
                "description": "",
                "sha256": hashlib.sha256(content.encode()).hexdigest(),
                "size_bytes": 25,
                "texts": 2,
                "tokens": 5,
            },
        ),
        "skipped_files": ("notes.md",),
        "context": 2,
        "max_windows": 1,
        "seed": 7,
        "texts": 2,
        "tokens": 5,
        "windows": 2,
        "used_windows": 1,
        "used_tokens": 2,
        "unsampled_tokens": 2,
        "remainder_tokens": 1,
        "overlap": None,
        "warnings": (),
    }


def test_a_file_of_no_bytes_is_an_error(tmp_path):
    path = written(tmp_path / "mine.txt", "")

    with pytest.raises(CorpusError, match=r"mine\.txt is empty; give a file with at least one"):
        user_calibration(path)


@pytest.mark.parametrize(("lines", "tokens"), [(1, 3), (10, 30)])
def test_texts_under_one_window_are_an_error_with_numbers(tmp_path, lines, tokens):
    path = written(tmp_path / "mine.txt", "a few words\n" * lines)

    message = (
        f"the calibration texts give {tokens} tokens, fewer than one window of 64; give more text"
    )
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        calibration_set(user_calibration(path), WORDS, Sampling(context=64, max_windows=4))


@pytest.mark.parametrize("end", ["\n", "\n\n"])
def test_ten_short_lines_fill_a_short_window(tmp_path, end):
    path = written(tmp_path / "mine.txt", f"a few words{end}" * 10)

    made = calibration_set(user_calibration(path), WORDS, Sampling(context=16, max_windows=1))

    assert made.windows.tolist() == [[1, 3, 5] * 5 + [1]]
    assert (made.record.remainder_tokens, made.record.warnings) == (14, ())


def test_fewer_windows_than_asked_for_are_a_warning(tmp_path):
    path = written(tmp_path / "mine.txt", "word " * 16 * 20)

    made = calibration_set(user_calibration(path), WORDS, Sampling(context=16, max_windows=512))

    assert made.record.used_windows == 20
    (warning,) = made.record.warnings
    assert warning == (
        "the calibration texts fill 20 windows of 16 tokens, fewer than the 512 asked for; "
        "give more text"
    )


def test_calibrating_on_what_is_measured_on_is_a_warning():
    text = packaged_text("kjv")
    sampling = Sampling(context=100, max_windows=50)

    made = calibration_set(user_calibration(text.path), CHARACTERS, sampling, [text])

    assert made.record.overlap.windows == 50
    assert made.record.overlap.share > 0.99
    (warning,) = made.record.warnings
    assert warning.endswith(
        "% of the calibration tokens also stand in the texts that accuracy is measured on, "
        "which flatters it; use other texts for one of the two"
    )


def test_the_packaged_corpora_are_no_part_of_what_is_measured_on():
    """Passages of 13 tokens, as the demo's tokenizer has them: 32 tokens lie in one."""
    native = tokenizers.Tokenizer.from_file(str(DEMO_TOKENIZER))
    tokenization = Tokenization(encode=lambda text: native.encode(text).ids, bos_id=BOS, eos_id=EOS)

    record = calibration_set(
        packaged_calibration(),
        tokenization,
        Sampling(context=256, max_windows=820),
        [packaged_text(name) for name in PACKAGED],
    ).record

    assert (record.windows, record.texts, record.warnings) == (820, 159, ())
    assert (record.overlap.windows, record.overlap.tokens) == (1, 32)


def test_the_order_of_the_texts_is_kept(tmp_path):
    path = written(tmp_path / "mine.txt", " ".join("x" * number for number in range(1, 101)))

    made = calibration_set(
        user_calibration(path), WORDS, Sampling(context=2, max_windows=20), [user_text(path)]
    )

    flat = made.windows.ravel().tolist()
    assert flat == sorted(flat)
    assert made.record.overlap.share == 1.0


def test_a_record_that_does_not_add_up_cannot_be_made():
    record = calibration_set(
        packaged_calibration("kjv"), WORDS, Sampling(context=64, max_windows=4)
    ).record

    for name in ("tokens", "used_tokens", "unsampled_tokens", "remainder_tokens"):
        with pytest.raises(AssertionError):
            dataclasses.replace(record, **{name: getattr(record, name) + 1})
