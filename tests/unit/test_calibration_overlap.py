"""What calibration windows share with other texts is counted as the obvious way counts it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiola_calibration import PACKAGED, Tokenization, packaged_text, user_text
from wiola_calibration.overlap import PASSAGE_TOKENS, find_overlap

CHARACTERS = Tokenization(encode=lambda text: [ord(letter) for letter in text])


def obvious(windows, evaluation):
    """Count with sets of tuples: windows and tokens in a passage that `evaluation` has too."""
    length = min(PASSAGE_TOKENS, windows.shape[1])
    known = {tuple(evaluation[at : at + length]) for at in range(len(evaluation) - length + 1)}
    covered = np.zeros(windows.shape, dtype=bool)
    for row, window in enumerate(windows.tolist()):
        for at in range(len(window) - length + 1):
            covered[row, at : at + length] |= tuple(window[at : at + length]) in known
    return int(covered.any(axis=1).sum()), int(covered.sum())


@given(
    windows=st.integers(2, 30).flatmap(
        lambda context: st.lists(
            st.text("ab", min_size=context, max_size=context), min_size=1, max_size=5
        )
    ),
    evaluation=st.text("ab\n", min_size=1, max_size=300).filter(str.strip),
)
def test_shared_passages_are_those_of_the_obvious_count(tmp_path_factory, windows, evaluation):
    path = tmp_path_factory.mktemp("text") / "eval.txt"
    path.write_bytes(evaluation.encode())
    ids = np.array([CHARACTERS.encode(window) for window in windows], dtype=np.int64)

    overlap = find_overlap(ids, [user_text(path)], CHARACTERS)

    assert (overlap.windows, overlap.tokens) == obvious(ids, CHARACTERS.encode(evaluation))
    assert overlap.share == overlap.tokens / ids.size
    assert overlap.passage_tokens == min(13, ids.shape[1])


def test_a_text_shares_all_with_itself():
    text = packaged_text("austen")
    ids = np.array(CHARACTERS.encode(text.path.read_text(encoding="utf-8")), dtype=np.int64)
    windows = ids[: len(ids) // 500 * 500].reshape(-1, 500)

    overlap = find_overlap(windows, [packaged_text(name) for name in PACKAGED], CHARACTERS)

    assert (overlap.windows, overlap.share) == (len(windows), 1.0)
    assert overlap.texts == ("austen", "kjv")


def test_a_passage_across_two_pieces_of_a_text_is_found():
    text = packaged_text("kjv")
    before, after, *_ = text.pieces()
    windows = np.array([CHARACTERS.encode(before[-12:] + after[:1])])

    assert find_overlap(windows, [text], CHARACTERS).tokens == 13


@pytest.mark.parametrize("length", [12, 13])
def test_a_passage_counts_from_thirteen_tokens(tmp_path, length):
    path = tmp_path / "eval.txt"
    path.write_text("!" * 5 + "abcdefghijklmnopq"[:length] + "!" * 5)
    window = np.array([CHARACTERS.encode("?" * 4 + "abcdefghijklmnopq"[:length] + "?" * 4)])

    overlap = find_overlap(window, [user_text(path)], CHARACTERS)

    assert overlap.tokens == (13 if length == 13 else 0)
