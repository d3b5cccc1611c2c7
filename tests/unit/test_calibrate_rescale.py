"""Activation-aware scaling: it changes nothing that a layer computes, and finds what pays.

Axes: S tokens, N rows, K features of a reader, P features of a producer.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracles, quantizer_oracles
from support.layers import layers_of, run
from support.oracles import MemorySource

from wiola_export.calibrate.rescale import (
    EXPONENTS,
    LARGEST,
    SMALLEST,
    at_reader,
    find_scales,
    note,
    output_error,
    rescaled,
)
from wiola_export.calibrate.taps import stages
from wiola_export.families.layered import Rescaling
from wiola_export.quantize.formats import Blocks
from wiola_export.weights import RescaledWeight, StoredWeight, whole

FORMS = [
    Blocks(bits=bits, block_size=size, symmetric=symmetric)
    for bits in (4, 8)
    for size in (32, 64)
    for symmetric in (False, True)
]
forms = st.sampled_from(FORMS)
seeds = st.integers(0, 10_000)
every_case = pytest.mark.parametrize("name", oracles.NAMES)


def produced(layer, rescaling):
    """Return P, the features that the producers make."""
    (size,) = {len(layer.weights[name]) for name in rescaling.producers}
    return size


def powers_of_two(layer, seed):
    """Return a scale for every feature of every freedom; multiplying by them rounds nothing."""
    rng = np.random.default_rng(seed)
    return [
        (freedom, torch.from_numpy(2.0 ** rng.integers(-3, 4, produced(layer, freedom))).float())
        for freedom in layer.layer.rescalings
    ]


# The freedoms that layers declare


@every_case
def test_every_freedom_is_exact(name):
    """Layer 0 without a blend, grouped values, odd sizes: not a bit of the result changes."""
    for number, (layer, hidden) in enumerate(layers_of(name)):
        before = run(layer, hidden)
        for pair in powers_of_two(layer, number):
            changed = rescaled([pair], layer.weights)

            after = run(layer, hidden, changed)

            assert all(map(torch.equal, after, before)), pair[0]
            moved = [n for n in changed if not torch.equal(changed[n], layer.weights[n])]
            assert sorted(moved) == sorted({*pair[0].readers, *pair[0].producers})


@every_case
def test_all_freedoms_together_are_exact(name):
    """The value projection reads a scaled norm and is itself scaled."""
    for number, (layer, hidden) in enumerate(layers_of(name)):
        pairs = powers_of_two(layer, number)

        after = run(layer, hidden, rescaled(pairs, layer.weights))

        assert all(map(torch.equal, after, run(layer, hidden)))


@given(seed=seeds, name=st.sampled_from(["gqa3", "odd_sizes", "wide_ffn"]), index=st.integers(0, 1))
@settings(max_examples=20, deadline=None)
def test_scales_of_any_size_cost_no_more_than_rounding(seed, name, index):
    layer, hidden = layers_of(name)[index]
    rng = np.random.default_rng(seed)
    pairs = [
        (freedom, torch.from_numpy(np.exp(rng.normal(size=produced(layer, freedom)))).float())
        for freedom in layer.layer.rescalings
    ]

    after = run(layer, hidden, rescaled(pairs, layer.weights))

    for found, expected in zip(after, run(layer, hidden), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@every_case
def test_all_that_read_scaled_features_are_readers_of_one_freedom(name):
    for layer, hidden in layers_of(name):
        groups = [set(group) for group in stages(layer, hidden)]
        for freedom in layer.layer.rescalings:
            assert set(freedom.readers) in groups


@every_case
def test_tensors_multiplied_by_the_noted_factors_are_the_rescaled_ones(name):
    """What is written is what was calibrated with, read in pieces or whole."""
    for number, (layer, _) in enumerate(layers_of(name)):
        pairs = powers_of_two(layer, number)
        factors = {}
        for freedom, scales in pairs:
            note(factors, layer, freedom, scales)

        expected = rescaled(pairs, layer.weights)
        for short, weight in expected.items():
            full, array = layer.full_name(short), layer.weights[short].numpy()
            if full not in factors:
                assert torch.equal(weight, layer.weights[short])
                continue
            stored = StoredWeight(MemorySource({full: array}), full, array.shape)
            found = RescaledWeight(stored, factors[full])
            np.testing.assert_array_equal(whole(found), weight)
            np.testing.assert_array_equal(found.rows(3, 8), weight[3:8])


# The search


def grouped(seed, *, repeats, runs=3, run_size=4, tokens=200):
    """Return a rescaling with two readers, their weights, and inputs (S, K) with outliers."""
    rng = np.random.default_rng(seed)
    features = runs * run_size * repeats
    freedom = Rescaling(readers=("a", "b"), producers=("p",), repeats=repeats, run=run_size)
    weights = {
        name: torch.from_numpy(rng.standard_normal((6, features)).astype(np.float32))
        for name in freedom.readers
    }
    sizes = np.exp(1.5 * rng.standard_normal(features))
    x = (rng.standard_normal((tokens, features)) * sizes).astype(np.float32)
    return freedom, weights, x


def mean_moments(x):
    return torch.from_numpy(x.T @ x / np.float32(len(x)))


def slow_error(freedom, weights, x, form, scales):
    """Return what rounding with those scales costs all readers, summed over the tokens."""
    at_readers = np.concatenate(
        [
            np.tile(scales[start : start + freedom.run], freedom.repeats)
            for start in range(0, len(scales), freedom.run)
        ]
    )
    return sum(
        quantizer_oracles.awq_error(weights[name].numpy(), at_readers, x, form)
        for name in freedom.readers
    )


def slow_magnitudes(freedom, x):
    """Return the root mean square of all features that one producer serves."""
    squares = np.square(x.astype(np.float64)).mean(axis=0)
    groups = squares.reshape(-1, freedom.repeats, freedom.run)
    return np.sqrt(groups.mean(axis=1).reshape(-1))


@given(seed=seeds, form=forms, repeats=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_the_search_finds_the_best_exponent_of_the_papers_loop(seed, form, repeats):
    freedom, weights, x = grouped(seed, repeats=repeats)
    magnitudes = slow_magnitudes(freedom, x)

    found = find_scales(freedom, weights, mean_moments(x), dict.fromkeys(weights, form)).numpy()

    candidates = [
        quantizer_oracles.awq_scales(magnitudes, exponent, (SMALLEST, LARGEST))
        for exponent in EXPONENTS
    ]
    best = min(slow_error(freedom, weights, x, form, scales) for scales in candidates)
    assert min(np.abs(np.log(found / scales)).max() for scales in candidates) < 1e-3
    assert slow_error(freedom, weights, x, form, found) <= best * 1.01


@given(seed=seeds, form=forms, repeats=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_scaling_is_never_worse_than_none(seed, form, repeats):
    freedom, weights, x = grouped(seed, repeats=repeats)
    moments, chosen = mean_moments(x), dict.fromkeys(weights, form)

    scales = at_reader(freedom, find_scales(freedom, weights, moments, chosen))

    after, before = (
        sum(output_error(weight, s, moments, form) for weight in weights.values())
        for s in (scales, torch.ones(x.shape[1]))
    )
    assert after <= before


def test_scaling_pays_where_a_few_features_are_large():
    freedom, weights, x = grouped(5, repeats=1, runs=16)
    form = Blocks(bits=4, block_size=32)

    scales = find_scales(freedom, weights, mean_moments(x), dict.fromkeys(weights, form))

    ones = np.ones(x.shape[1])
    assert slow_error(freedom, weights, x, form, scales.numpy()) < 0.8 * slow_error(
        freedom, weights, x, form, ones
    )


@given(seed=seeds, form=forms, features=st.sampled_from([8, 40, 72, 100]))
@settings(max_examples=30, deadline=None)
def test_the_error_is_that_of_the_products(seed, form, features):
    """Moments stand for the tokens; the last block may not be full."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((4, features)).astype(np.float32)
    x = rng.standard_normal((50, features)).astype(np.float32)
    scales = np.exp(0.5 * rng.standard_normal(features)).astype(np.float32)

    found = output_error(torch.from_numpy(weight), torch.from_numpy(scales), mean_moments(x), form)

    expected = quantizer_oracles.awq_error(weight, scales, x, form) / len(x)
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("dead", [1, 11, 12])
def test_features_never_seen_get_scales_that_can_be_stored(dead):
    """Also if no feature was ever seen."""
    freedom, weights, x = grouped(7, repeats=1)
    x[:, :dead] = 0

    scales = find_scales(
        freedom, weights, mean_moments(x), dict.fromkeys(weights, Blocks(bits=4, block_size=32))
    )

    assert scales.shape == (12,)
    assert ((scales >= SMALLEST) & (scales <= LARGEST)).all()


@given(seed=seeds, form=forms, dead=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_features_never_seen_leave_the_others_their_powers(seed, form, dead):
    """Otherwise they would fill the range, and push all that was seen to one end of it."""
    freedom, weights, x = grouped(seed, repeats=1)
    x[:, :dead] = 0
    magnitudes = slow_magnitudes(freedom, x)[dead:]

    found = find_scales(freedom, weights, mean_moments(x), dict.fromkeys(weights, form)).numpy()

    powers = (magnitudes[:, None] / magnitudes[0]) ** np.asarray(EXPONENTS)
    relative = found[dead:, None] / found[dead]
    assert np.abs(np.log(relative / powers)).max(axis=0).min() < 1e-3


@given(runs=st.integers(1, 4), run_size=st.integers(1, 5), repeats=st.integers(1, 4))
def test_grouped_queries_share_the_scales_of_their_values(runs, run_size, repeats):
    """Head h of the readers reads the values of head h // repeats."""
    freedom = Rescaling(readers=("a",), producers=("p",), repeats=repeats, run=run_size)
    scales = torch.arange(runs * run_size).float()

    found = at_reader(freedom, scales).reshape(runs * repeats, run_size)

    for head in range(runs * repeats):
        start = head // repeats * run_size
        assert found[head].tolist() == scales[start : start + run_size].tolist()
