"""The numerically delicate parts of the `moment` family, against many digits."""

import decimal
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import distance

from wiola_export.families.moment import operators

SCALE, EPSILON = 0.1, 1e-6
variances = st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=8)


def exact_features(variance):
    """Return direction and magnitude as they are defined, in 60 digits."""
    with decimal.localcontext(prec=60):
        scale, eps = decimal.Decimal(float(np.float32(SCALE))), decimal.Decimal(EPSILON)
        r = [(1 + decimal.Decimal(float(v)) / scale).ln() for v in variance]
        root = (sum(x * x for x in r) / len(r) + eps).sqrt()
        magnitude = (1 + root).ln() - (1 + eps.sqrt()).ln()
        return np.array([float(x / root) for x in r] + [float(magnitude)])


@given(variances)
def test_features_are_precise_for_tiny_and_for_huge_variances(values):
    """Relative to each feature; below that only what float32 cannot hold."""
    variance = np.array(values, np.float32)

    found = operators.variance_features(torch.from_numpy(variance), SCALE, EPSILON).numpy()

    np.testing.assert_allclose(found, exact_features(variance), rtol=3e-6, atol=1e-30)


def test_a_difference_of_logarithms_would_lose_the_magnitude():
    """The reason for the form that is used."""
    variance = np.full(4, 1e-7, np.float32)
    exact = exact_features(variance)[-1]
    m = np.float32(np.mean(np.log1p(variance / np.float32(SCALE)) ** 2))
    root = np.sqrt(m + np.float32(EPSILON))

    naive = np.log1p(root) - np.log1p(np.sqrt(np.float32(EPSILON)))
    found = operators.variance_features(torch.from_numpy(variance), SCALE, EPSILON)[-1]

    assert abs(naive / exact - 1) > 1e-3
    assert float(found) == pytest.approx(exact, rel=1e-6)


def attend(v, heads=2, seed=0):
    """Attend with random queries and keys to values (1, T, d); return mean and variance."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(v.shape, generator=generator) for _ in range(2))
    empty = torch.zeros(1, heads, 0, v.shape[-1] // heads)
    mean, variance, *_ = operators.moment_attention(q, k, v, (empty, empty), heads)
    return mean.numpy(), variance.numpy()


@given(st.floats(-1e3, 1e3, width=32), st.integers(0, 99))
def test_the_first_token_has_no_variance_and_its_own_value_as_mean(offset, seed):
    v = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(seed)) + offset

    mean, variance = attend(v, seed=seed)

    assert not variance[:, 0].any()
    assert np.array_equal(mean[:, 0], v[:, 0].numpy())


@given(st.floats(-1e3, 1e3, width=32), st.integers(0, 99))
def test_equal_values_have_no_variance_at_any_position(value, seed):
    v = torch.full((1, 9, 8), value)

    _, variance = attend(v, seed=seed)

    assert not variance.any()


@given(st.integers(0, 99))
def test_a_variance_does_not_depend_on_what_all_values_have_in_common(seed):
    """Ten thousand is added to numbers of size one: squares of the sums would leave nothing."""
    v = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(seed))
    v = torch.round(v * 1024) / 1024  # so that adding is exact

    mean, variance = attend(v, seed=seed)
    far_mean, far_variance = attend(v + 8192, seed=seed)

    assert distance(far_variance, variance) < 1e-6
    assert distance(far_mean, mean + 8192) < 1e-3
    assert (variance >= 0).all()


@given(st.integers(0, 99))
def test_the_softmax_over_two_differences_is_a_sigmoid(seed):
    generator = np.random.default_rng(seed)
    query, *keys = generator.standard_normal((3, 4, 16))
    updates = generator.standard_normal((2, 4, 10))

    found = operators.route_differences(
        torch.from_numpy(query),
        (torch.from_numpy(keys[0]), torch.from_numpy(keys[1])),
        (torch.from_numpy(updates[0]), torch.from_numpy(updates[1])),
    )

    weights = np.exp([(query * key).sum(-1) / math.sqrt(16) for key in keys])
    weights /= weights.sum(0)
    assert distance(found, (weights[..., None] * updates).sum(0)) < 1e-12
