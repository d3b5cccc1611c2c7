"""Samplers: their ranges, their distributions and their seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wiola_runtime import BundleError, GenerationError, Sampling
from wiola_runtime.sampling import penalised, probabilities, sampler

LOGITS = hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-40, 40, width=32))
CHOICES = st.builds(
    Sampling,
    temperature=st.floats(1e-4, 10),
    top_k=st.none() | st.integers(1, 70),
    top_p=st.none() | st.floats(1e-6, 1),
    min_p=st.none() | st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", -1, "finite and >= 0"),
        ("temperature", math.nan, "finite and >= 0"),
        ("temperature", math.inf, "finite and >= 0"),
        ("top_k", 0, "an integer >= 1, or None"),
        ("top_k", -1, "an integer >= 1, or None"),
        ("top_k", 1.5, "an integer >= 1, or None"),
        ("top_p", 0, r"in \(0, 1\]"),
        ("top_p", 1.5, r"in \(0, 1\]"),
        ("top_p", math.nan, r"in \(0, 1\]"),
        ("min_p", -0.1, r"in \[0, 1\]"),
        ("min_p", math.nan, r"in \[0, 1\]"),
        ("repetition_penalty", 0, "finite and > 0"),
        ("repetition_penalty", math.nan, "finite and > 0"),
        ("seed", -1, "an integer >= 0, or None"),
        ("seed", True, "an integer >= 0, or None"),
    ],
)
def test_a_value_out_of_range_names_its_field(field, value, expected):
    with pytest.raises(GenerationError, match=rf"^{field} is {value}; expected {expected}$"):
        Sampling(**({"temperature": 1.0} | {field: value}))


@pytest.mark.parametrize("field", ["top_k", "top_p", "min_p"])
def test_an_option_without_effect_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} has no effect at temperature 0; leave it out"):
        Sampling(**{field: 1})


@given(LOGITS, CHOICES)
def test_every_choice_gives_a_distribution_that_keeps_the_best(logits, sampling):
    """Non-negative, sums to one, never NaN, and the likeliest token stays possible."""
    chances = probabilities(logits, sampling)

    assert (chances >= 0).all()
    assert chances.sum() == pytest.approx(1)
    assert chances[logits.argmax()] == chances.max() > 0


@given(LOGITS, st.floats(0.01, 1), st.floats(0.1, 5))
def test_the_nucleus_is_the_smallest_set_that_reaches_p(logits, top_p, temperature):
    """Its last token is needed, and no token outside is likelier than one inside."""
    everything = probabilities(logits, Sampling(temperature=temperature))
    kept = probabilities(logits, Sampling(temperature=temperature, top_p=top_p)) > 0
    inside = everything[kept]

    assert inside.sum() >= top_p - 1e-9
    assert inside.sum() - inside.min() < top_p + 1e-9
    assert (everything[~kept] <= inside.min()).all()


@given(LOGITS, st.integers(1, 70))
def test_top_k_keeps_k_tokens_and_ties(logits, top_k):
    kept = probabilities(logits, Sampling(temperature=1.0, top_k=top_k)) > 0
    edge = np.sort(logits)[-min(top_k, logits.size)]

    assert set(np.flatnonzero(kept)) <= set(np.flatnonzero(logits >= edge))


def test_min_p_keeps_a_share_of_the_best():
    logits = np.log(np.asarray([0.5, 0.3, 0.15, 0.05], np.float32))

    chances = probabilities(logits, Sampling(temperature=1.0, min_p=0.5))

    np.testing.assert_allclose(chances, [0.625, 0.375, 0, 0], atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-4, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = np.asarray([1, 3, 2.9, -5], np.float32)

    np.testing.assert_array_equal(
        probabilities(logits, Sampling(temperature=temperature)), [0, 1, 0, 0]
    )


def test_draws_follow_the_distribution():
    logits = np.log(np.asarray([0.6, 0.3, 0.1, 0.0001], np.float32))
    pick = sampler(Sampling(temperature=1.0, seed=3), vocab_size=4)

    shares = np.bincount([pick(logits) for _ in range(4000)], minlength=4) / 4000

    np.testing.assert_allclose(shares, [0.6, 0.3, 0.1, 0], atol=0.03)


def test_a_seed_reproduces_and_two_samplers_do_not_disturb_each_other():
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    choice = Sampling(temperature=1.0, seed=11)
    first, second = (sampler(choice, vocab_size=50) for _ in range(2))

    pairs = [(first(logits), second(logits)) for _ in range(30)]

    assert all(one == other for one, other in pairs)
    assert len({one for one, _ in pairs}) > 1


def test_a_seed_that_is_left_open_is_drawn_and_kept():
    seeds = {Sampling(temperature=1.0).seeded().seed for _ in range(8)}

    assert None not in seeds
    assert len(seeds) > 1
    assert Sampling().seeded().seed is None
    assert Sampling(temperature=1.0, seed=5).seeded().seed == 5


def test_the_penalty_reaches_prompt_and_reply():
    """A token of the prompt loses first, then the one that was chosen instead."""
    logits = np.asarray([3, 2.5, 2, -1], np.float32)
    pick = sampler(Sampling(repetition_penalty=2.0), vocab_size=4, prompt_ids=[0])

    assert [pick(logits) for _ in range(3)] == [1, 2, 0]
    seen = np.asarray([True, False, False, True])
    np.testing.assert_array_equal(penalised(logits, seen, 2.0), [1.5, 2.5, 2, -2])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(bad, temperature):
    pick = sampler(Sampling(temperature=temperature, seed=0), vocab_size=3)

    with pytest.raises(BundleError, match=rf"returned a logit of {bad}, .* run Model\.self_test"):
        pick(np.asarray([1, bad, 2], np.float32))
