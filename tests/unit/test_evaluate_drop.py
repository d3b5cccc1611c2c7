"""Many scores become a few figures that agree with one another."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiola_export.evaluate.divergence import TokenScores
from wiola_export.evaluate.drop import histogram_borders, summarize


def scores(windows=16, predictions=32, seed=0, shift=0.0):
    """Plausible scores; `shift` is what the candidate loses on every token, in nats."""
    rng = np.random.default_rng(seed)
    shape = windows, predictions
    reference = rng.gamma(2.0, 2.0, shape)
    return TokenScores(
        reference_nats=reference,
        candidate_nats=reference + shift + rng.normal(0, 0.05, shape),
        kl_nats=rng.lognormal(-7, 1.5, shape),
        same_top1=rng.random(shape) < 0.9,
        same_top5=(rng.integers(3, 6, shape) / 5).astype(np.float32),
    )


def test_percentiles_are_in_order():
    kl = summarize(scores()).kl_nats

    assert kl.median < kl.p90 < kl.p99 < kl.p999 <= kl.max
    assert kl.median < kl.mean


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 40))
def test_figures_are_those_of_all_tokens(seed, windows, predictions):
    given_scores = scores(windows, predictions, seed)
    drop = summarize(given_scores)
    change = np.exp(-given_scores.candidate_nats) - np.exp(-given_scores.reference_nats)

    assert drop.tokens == windows * predictions == sum(drop.kl_nats.histogram)
    assert drop.kl_nats.mean == pytest.approx(given_scores.kl_nats.mean())
    assert drop.top5_agreement == pytest.approx(given_scores.same_top5.mean(), rel=1e-6)
    assert drop.probability_change.mean == pytest.approx(change.mean())
    assert drop.probability_change.rms == pytest.approx(np.sqrt((change**2).mean()))


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 40))
def test_positions_cover_a_window_once_and_agree_with_the_whole(seed, windows, predictions):
    drop = summarize(scores(windows, predictions, seed))
    bins = drop.positions
    sizes = np.array([b.stop - b.start for b in bins])

    assert (bins[0].start, bins[-1].stop) == (1, drop.context)
    assert all(a.stop == b.start for a, b in itertools.pairwise(bins))
    assert (sizes > 0).all()
    kl = np.average([b.kl_nats for b in bins], weights=sizes)
    assert kl == pytest.approx(drop.kl_nats.mean)
    agreement = np.average([b.top1_agreement for b in bins], weights=sizes)
    assert agreement == pytest.approx(drop.top1_agreement)


def test_a_histogram_counts_what_lies_beyond_its_borders():
    few = scores(1, 4)
    few.kl_nats[:] = [0.0, 1e-8, 3e-4, 1e6]
    borders = histogram_borders()

    counts = np.array(summarize(few).kl_nats.histogram)

    assert (counts[0], counts[-1], counts.sum()) == (2, 1, 4)
    (filled,) = np.flatnonzero(counts[1:-1]) + 1
    assert borders[filled] <= 3e-4 < borders[filled + 1]


def test_intervals_hold_their_figures():
    drop = summarize(scores())
    found = drop.intervals

    assert found.ppl_ratio.holds(drop.ppl_ratio)
    assert found.reference_ppl.holds(drop.reference_ppl)
    assert found.candidate_ppl.holds(drop.candidate_ppl)
    assert found.kl_nats.holds(drop.kl_nats.mean)
    assert found.top1_agreement.holds(drop.top1_agreement)
    assert found.top5_agreement.holds(drop.top5_agreement)
    assert found.probability_change.holds(drop.probability_change.mean)


def test_pairing_shows_a_difference_that_the_two_intervals_hide():
    drop = summarize(scores(shift=0.02))
    found = drop.intervals

    assert found.reference_ppl.high > found.candidate_ppl.low
    assert not found.ppl_ratio.holds(1.0)


def test_no_difference_is_not_shown():
    assert summarize(scores(shift=0.0)).intervals.ppl_ratio.holds(1.0)


def test_few_windows_have_figures_and_no_intervals():
    drop = summarize(scores(windows=7))

    assert set(dataclasses.asdict(drop.intervals).values()) == {None}
    assert drop.ppl_ratio > 0
