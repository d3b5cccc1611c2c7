"""An interval holds the true value as often as it says, and is absent where it cannot."""

import re

import numpy as np
import pytest

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.bootstrap import (
    RESAMPLES,
    Interval,
    interval,
    resampled_means,
    student_quantile,
    tail_share,
)

# Two-sided 95 % quantiles of Student's t as printed tables give them.
STUDENT = {7: 2.365, 9: 2.262, 15: 2.131, 30: 2.042, 63: 1.998, 1000: 1.962}


@pytest.mark.parametrize(("freedom", "quantile"), STUDENT.items())
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=1.2e-3)


def test_fewer_windows_leave_out_less():
    shares = [tail_share(windows) for windows in (8, 16, 64, 10_000)]

    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.025, abs=1e-4)


@pytest.mark.parametrize("windows", [8, 16, 64])
def test_95_of_100_intervals_hold_the_true_mean(windows):
    rng = np.random.default_rng(1)
    trials = 400
    held = sum(
        interval(resampled_means(rng.normal(3, 1, (windows, 1)), [windows])[:, 0], windows).holds(3)
        for _ in range(trials)
    )

    assert 0.92 < held / trials < 0.98


def test_the_same_figures_give_the_same_interval():
    figures = np.random.default_rng(2).normal(size=(12, 2))

    first, second = (resampled_means(figures, [12]) for _ in range(2))
    assert first.shape == (RESAMPLES, 2)
    np.testing.assert_array_equal(first, second)


def test_two_figures_are_drawn_together():
    figures = np.random.default_rng(3).normal(size=(20, 1)) + np.array([0.0, 0.25])

    means = resampled_means(figures, [20])

    np.testing.assert_allclose(means[:, 1] - means[:, 0], 0.25, atol=1e-12)


def test_a_difference_between_texts_does_not_widen_an_interval():
    """Each text keeps its windows, however unlike the two are."""
    figures = np.concatenate([np.full((16, 1), 3.0), np.full((16, 1), 5.0)])

    np.testing.assert_allclose(resampled_means(figures, [16, 16]), 4.0)
    assert resampled_means(figures, [32]).std() > 0.1


def test_too_few_windows_have_no_interval():
    assert interval(np.zeros(RESAMPLES), 7) is None
    assert interval(np.zeros(RESAMPLES), 8) == Interval(0.0, 0.0)


def test_an_interval_upside_down_is_refused():
    message = "an interval from 2 to 1 holds nothing; the low end must not be above the high one"
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        Interval(2, 1)


def test_an_interval_holds_its_ends():
    assert Interval(1, 2).holds(1)
    assert Interval(1, 2).holds(2)
    assert not Interval(1, 2).holds(2.1)
