"""The windows of a sample are chosen evenly, by the seed alone, and stay in order."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiola_calibration import CorpusError, Sampling
from wiola_calibration.sampling import sample_windows


def chosen(found, max_windows, seed, context=2):
    """Return the numbers of the windows that are kept out of `found`."""
    sampling = Sampling(context=context, max_windows=max_windows, seed=seed)
    sample = sample_windows([range(found * context)], sampling)
    assert sample.found == found
    return (sample.windows[:, 0] // context).tolist()


@given(
    pieces=st.lists(st.lists(st.integers(0, 9), max_size=9)),
    context=st.integers(2, 12),
    max_windows=st.integers(1, 12),
    seed=st.integers(),
)
def test_windows_are_cut_whatever_the_pieces(pieces, context, max_windows, seed):
    flat = [token for piece in pieces for token in piece]
    sampling = Sampling(context=context, max_windows=max_windows, seed=seed)

    sample = sample_windows(pieces, sampling)

    every = [flat[at : at + context] for at in range(0, len(flat) - context + 1, context)]
    assert sample.found == len(every)
    assert sample.remainder == len(flat) % context
    assert sample.windows.dtype == np.int64
    assert sample.windows.shape == (min(len(every), max_windows), context)
    assert all(window in every for window in sample.windows.tolist())


@given(found=st.integers(0, 60), smaller=st.integers(1, 70), more=st.integers(0, 9), seed=...)
def test_a_sample_is_in_order_without_repetition_and_part_of_a_larger_one(
    found: int, smaller: int, more: int, seed: int
):
    numbers = chosen(found, smaller, seed)

    assert numbers == sorted(set(numbers))
    assert len(numbers) == min(found, smaller)
    assert set(numbers) <= set(chosen(found, smaller + more, seed))
    assert numbers == chosen(found, smaller, seed)


def test_every_window_is_as_likely_as_any_other():
    """Of 40 windows 10 are kept, 2,000 times: each 500 times, give or take 5 deviations of 19.4."""
    counts = np.zeros(40, dtype=int)
    for seed in range(2000):
        counts[chosen(40, 10, seed)] += 1

    assert counts.sum() == 20_000
    assert np.abs(counts - 500).max() < 97


def test_a_seed_means_the_same_windows_forever():
    assert chosen(1000, 8, seed=0) == [24, 177, 268, 437, 470, 486, 529, 565]
    assert chosen(1000, 8, seed=1) == [127, 366, 496, 586, 590, 601, 791, 880]


@pytest.mark.parametrize(
    ("context", "max_windows", "message"),
    [
        (1, 4, "context is 1; a window needs at least 2 tokens"),
        (16, 0, "max_windows is 0; use at least 1 window"),
    ],
)
def test_numbers_out_of_range_are_refused(context, max_windows, message):
    with pytest.raises(CorpusError, match=f"^{re.escape(message)}$"):
        Sampling(context=context, max_windows=max_windows)
