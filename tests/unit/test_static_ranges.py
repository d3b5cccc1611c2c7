"""Ranges of activations: what is rounded how, and from which of the numbers seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiola_export.calibrate import observers
from wiola_export.calibrate.observers import HistogramObserver
from wiola_export.quantize.formats import ActivationRange

finite = st.floats(-1e6, 1e6, width=32)
METHODS = ("percentile", "entropy")


def codes(x, one):
    return np.clip(np.rint(x / one.scale) + one.zero_point, 0, 255)


@given(finite, finite)
def test_a_range_holds_zero_exactly_and_the_rest_within_a_step(first, second):
    """Half a step inside; the rounded zero point may move the ends by another half."""
    low, high = min(first, second), max(first, second)

    one = ActivationRange.spanning(low, high)

    x = np.linspace(min(low, 0), max(high, 0), 1001)
    found = (codes(x, one) - one.zero_point) * one.scale
    assert codes(0.0, one) == one.zero_point
    assert np.abs(found - x).max() <= one.scale * 1.0001
    assert np.float32(one.scale) > 0


@pytest.mark.parametrize("high", [0.0, 1e-190, 1e-39])
def test_an_input_that_is_always_zero_has_a_range(high):
    """Or as good as zero: a smaller step would be zero in float32."""
    assert ActivationRange.spanning(0.0, high) == ActivationRange(1.0, 0)


@pytest.mark.parametrize(("low", "high", "zero_point"), [(0, 6, 0), (-6, 0, 255), (-1, 1, 128)])
def test_a_range_uses_all_codes(low, high, zero_point):
    one = ActivationRange.spanning(low, high)

    assert one.zero_point == zero_point
    assert one.scale == pytest.approx((high - low) / 255)


def observed(method, arrays):
    low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)
    observer = HistogramObserver(method, float(low), float(high))
    for array in arrays:
        observer.add(array)
    return observer.range()


def test_a_percentile_cuts_what_is_rare(monkeypatch):
    """As many are cut off at either end, up to a bin of the histogram."""
    monkeypatch.setattr(observers, "PERCENTILE", 99.0)
    x = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
    bin_width = 2 * float(np.abs(x).max()) / observers.BINS

    found = observed("percentile", np.array_split(x, 7))

    low, high = np.quantile(x, [0.005, 0.995])
    assert found.scale * 255 == pytest.approx(high - low, abs=4 * bin_width)


def test_entropy_gives_up_a_single_outlier():
    """Keeping it would put everything else on a few levels."""
    x = np.random.default_rng(1).standard_normal(20_000).astype(np.float32)
    x[0] = 60

    found = observed("entropy", [x])

    assert found.scale * 255 < 0.7 * (60 - x.min())


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_arrays_is_without_effect(method):
    x = np.random.default_rng(2).laplace(size=(6, 2000)).astype(np.float32)

    assert observed(method, list(x)) == observed(method, list(x[::-1]))


@pytest.mark.parametrize("method", METHODS)
def test_a_range_reaches_no_further_than_what_was_seen(method):
    x = np.abs(np.random.default_rng(3).standard_normal(5000)).astype(np.float32)

    found = observed(method, [x])

    assert found.zero_point == 0
    assert found.scale * 255 <= x.max() * 1.0001


def test_what_is_kept_does_not_grow_with_the_arrays():
    observer = HistogramObserver("entropy", -4.0, 4.0)
    rng = np.random.default_rng(4)

    for _ in range(300):
        observer.add(rng.uniform(-4, 4, (8, 16)).astype(np.float32))

    counts = observer._collector.histogram_dict["x"][0]
    assert counts.size == observers.BINS
    assert counts.sum() == 300 * 128 + 2


@pytest.mark.parametrize("method", METHODS)
def test_the_collector_prints_nothing(method, capsys):
    """The result of a command is what stands on its output."""
    observed(method, [np.linspace(-1, 2, 3000, dtype=np.float32)])

    assert capsys.readouterr() == ("", "")
