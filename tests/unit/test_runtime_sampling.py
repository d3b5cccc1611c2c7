"""Samplers: their ranges, their distributions and their seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wiola_runtime import BundleError, GenerationConfig, GenerationError
from wiola_runtime.sampling import log_probabilities, penalised, probabilities, sampler

LOGITS = hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-40, 40, width=32))
CHOICES = st.builds(
    GenerationConfig,
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
        ("typical_p", 1.2, r"in \(0, 1\]"),
        ("presence_penalty", math.inf, "a finite number"),
        ("frequency_penalty", math.nan, "a finite number"),
        ("frequency_penalty", "x", "a finite number"),
        ("max_new_tokens", -1, "an integer >= 0"),
        ("logprobs", 101, "an integer from 0 to 100, or None"),
        ("draft_tokens", -1, "an integer from 0 to 64"),
        ("temperature", None, "finite and >= 0"),
        ("temperature", 10**400, "finite and >= 0"),
        ("presence_penalty", 2e12, "of usual size"),
        ("repetition_penalty", 1e-300, "of usual size"),
        ("temperature", True, "finite and >= 0"),
        ("temperature", np.True_, "finite and >= 0"),
        ("top_p", True, r"in \(0, 1\]"),
        ("presence_penalty", True, "a finite number"),
        ("repetition_penalty", True, "finite and > 0"),
        ("ignore_eos", 1, "True or False"),
        ("ignore_eos", "no", "True or False"),
        ("ignore_eos", None, "True or False"),
    ],
)
def test_a_value_out_of_range_names_its_field(field, value, expected):
    with pytest.raises(GenerationError, match=rf"^{field} is {value}; expected {expected}$"):
        GenerationConfig(**({"temperature": 1.0} | {field: value}))


@pytest.mark.parametrize(
    ("field", "value"), [("top_k", 1), ("top_p", 0.9), ("min_p", 0.1), ("typical_p", 0.9)]
)
def test_an_option_without_effect_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} has no effect at temperature 0; leave it out"):
        GenerationConfig(**{field: value})


def test_what_keeps_every_token_is_no_option_without_effect():
    """Clients of servers send these whether they mean them or not."""
    assert GenerationConfig(top_p=1.0, min_p=0, typical_p=1).temperature == 0


@given(LOGITS, CHOICES)
def test_every_choice_gives_a_distribution_that_keeps_the_best(logits, sampling):
    """Non-negative, sums to one, never NaN, and the likeliest token stays possible."""
    chances = probabilities(logits, sampling)

    assert (chances >= 0).all()
    assert chances.sum() == pytest.approx(1)
    plain = probabilities(logits, GenerationConfig(temperature=sampling.temperature))
    assert plain[chances > 0].max() == plain.max()


class Only:
    """A grammar that takes some tokens."""

    def __init__(self, allowed):
        self.allowed = allowed
        self.noted = []

    def __call__(self, logits):
        return np.where(self.allowed, logits, np.float32(-np.inf))

    def note(self, token_id):
        self.noted.append(token_id)


ANY = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-300, 1e-4]) | st.floats(1e-3, 100),
        "repetition_penalty": st.floats(0.01, 100),
        "presence_penalty": st.floats(-1e6, 1e6),
        "frequency_penalty": st.floats(-1e6, 1e6),
        "logit_bias": st.dictionaries(st.integers(0, 1), st.floats(-1e6, 1e6)),
        "seed": st.integers(0, 2**32 - 1),
    }
)
DRAWN = st.fixed_dictionaries(
    {
        "top_k": st.none() | st.integers(1, 70),
        "top_p": st.none() | st.floats(1e-9, 1),
        "min_p": st.none() | st.floats(0, 1),
        "typical_p": st.none() | st.floats(1e-9, 1),
    }
)


@given(LOGITS, ANY, DRAWN, st.data())
def test_whatever_is_chosen_one_possible_token_is_picked(logits, choice, drawn, data):
    """No NaN, no warning, and nothing that a grammar excludes, however likely it is."""
    config = GenerationConfig(**choice, **(drawn if choice["temperature"] else {}))
    places = st.sets(st.integers(0, logits.size - 1), min_size=1)
    allowed = np.isin(np.arange(logits.size), list(data.draw(places)))
    grammar = Only(allowed)
    pick = sampler(config, vocab_size=logits.size, prompt_ids=[0], grammar=grammar)
    before = logits.copy()

    picked = [pick(logits) for _ in range(4)]

    assert all(type(token_id) is int and allowed[token_id] for token_id in picked)
    assert grammar.noted == picked
    np.testing.assert_array_equal(logits, before)


@given(LOGITS)
def test_greedy_takes_the_first_of_the_highest(logits):
    assert sampler(GenerationConfig(), vocab_size=logits.size)(logits) == int(np.argmax(logits))


@given(LOGITS, st.floats(0.1, 5), st.integers(1, 70), st.floats(1e-6, 1), st.floats(0, 1))
def test_what_is_kept_keeps_its_proportions(logits, temperature, top_k, top_p, min_p):
    config = GenerationConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    chances = probabilities(logits, config)
    plain = probabilities(logits, GenerationConfig(temperature=temperature))
    kept = chances > 0

    np.testing.assert_allclose(chances[kept], plain[kept] / plain[kept].sum(), rtol=1e-6)
    assert (chances[kept] >= min_p * chances.max() * (1 - 1e-9)).all()


@given(LOGITS, st.floats(0.01, 1), st.floats(0.1, 5))
def test_the_nucleus_is_the_smallest_set_that_reaches_p(logits, top_p, temperature):
    """Its last token is needed, and no token outside is likelier than one inside."""
    everything = probabilities(logits, GenerationConfig(temperature=temperature))
    kept = probabilities(logits, GenerationConfig(temperature=temperature, top_p=top_p)) > 0
    inside = everything[kept]

    assert inside.sum() >= top_p - 1e-9
    assert inside.sum() - inside.min() < top_p + 1e-9
    assert (everything[~kept] <= inside.min()).all()


@given(LOGITS, st.integers(1, 70))
def test_top_k_keeps_k_tokens_and_ties(logits, top_k):
    kept = probabilities(logits, GenerationConfig(temperature=1.0, top_k=top_k)) > 0
    edge = np.sort(logits)[-min(top_k, logits.size)]

    assert set(np.flatnonzero(kept)) <= set(np.flatnonzero(logits >= edge))


def test_min_p_keeps_a_share_of_the_best():
    logits = np.log(np.asarray([0.5, 0.3, 0.15, 0.05], np.float32))

    chances = probabilities(logits, GenerationConfig(temperature=1.0, min_p=0.5))

    np.testing.assert_allclose(chances, [0.625, 0.375, 0, 0], atol=1e-6)


@given(LOGITS, st.floats(0.01, 1), st.floats(0.1, 5))
def test_the_typical_set_is_the_smallest_that_reaches_p(logits, typical_p, temperature):
    """No token outside tells closer to what is expected than one inside."""
    everything = probabilities(logits, GenerationConfig(temperature=temperature))
    config = GenerationConfig(temperature=temperature, typical_p=typical_p)
    kept = probabilities(logits, config) > 0
    possible = everything > 0
    information = np.where(possible, -np.log(np.where(possible, everything, 1)), np.inf)
    surprise = np.abs(information - (everything[possible] * information[possible]).sum())
    inside = everything[kept]

    assert inside.sum() >= typical_p - 1e-9
    if typical_p < 1:
        last = everything[kept & (surprise == surprise[kept].max())].max()
        assert inside.sum() - last < typical_p + 1e-9
        assert (surprise[~kept & possible] >= surprise[kept].max() - 1e-12).all()


@pytest.mark.parametrize("temperature", [1e-4, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = np.asarray([1, 3, 2.9, -5], np.float32)

    np.testing.assert_array_equal(
        probabilities(logits, GenerationConfig(temperature=temperature)), [0, 1, 0, 0]
    )


def test_draws_follow_the_distribution():
    logits = np.log(np.asarray([0.6, 0.3, 0.1, 0.0001], np.float32))
    pick = sampler(GenerationConfig(temperature=1.0, seed=3), vocab_size=4)

    shares = np.bincount([pick(logits) for _ in range(4000)], minlength=4) / 4000

    np.testing.assert_allclose(shares, [0.6, 0.3, 0.1, 0], atol=0.03)


def test_a_seed_reproduces_and_two_samplers_do_not_disturb_each_other():
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    choice = GenerationConfig(temperature=1.0, seed=11)
    first, second = (sampler(choice, vocab_size=50) for _ in range(2))

    pairs = [(first(logits), second(logits)) for _ in range(30)]

    assert all(one == other for one, other in pairs)
    assert len({one for one, _ in pairs}) > 1


def test_a_seed_that_is_left_open_is_drawn_and_kept():
    seeds = {GenerationConfig(temperature=1.0).seeded().seed for _ in range(8)}

    assert None not in seeds
    assert len(seeds) > 1
    assert GenerationConfig().seeded().seed is None
    assert GenerationConfig(temperature=1.0, seed=5).seeded().seed == 5


def test_the_penalty_reaches_prompt_and_reply():
    """A token of the prompt loses first, then the one that was chosen instead."""
    logits = np.asarray([3, 2.5, 2, -1], np.float32)
    pick = sampler(GenerationConfig(repetition_penalty=2.0), vocab_size=4, prompt_ids=[0])

    assert [pick(logits) for _ in range(3)] == [1, 2, 0]
    seen = np.asarray([True, False, False, True])
    np.testing.assert_array_equal(penalised(logits, seen, 2.0), [1.5, 2.5, 2, -2])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(bad, temperature):
    pick = sampler(GenerationConfig(temperature=temperature, seed=0), vocab_size=3)

    with pytest.raises(BundleError, match=rf"returned a logit of {bad}, .* run Model\.self_test"):
        pick(np.asarray([1, bad, 2], np.float32))


def test_presence_and_frequency_count_the_reply_alone():
    logits = np.asarray([3, 2.5, 2, -1], np.float32)
    presence = GenerationConfig(presence_penalty=0.6)
    frequency = GenerationConfig(frequency_penalty=0.3)

    picks = {
        config: [pick(logits) for _ in range(5)]
        for config in (presence, frequency)
        for pick in [sampler(config, vocab_size=4, prompt_ids=[0, 0, 0])]
    }

    assert picks[presence] == [0, 1, 0, 0, 0]
    assert picks[frequency] == [0, 0, 1, 0, 1]


def test_a_bias_moves_its_token_and_must_name_one():
    logits = np.asarray([3, 2.5, 2, -1], np.float32)
    pick = sampler(GenerationConfig(logit_bias={3: 9.0, 0: -100}), vocab_size=4)

    assert [pick(logits) for _ in range(2)] == [3, 3]
    assert logits.tolist() == [3, 2.5, 2, -1]
    with pytest.raises(GenerationError, match=r"^logit_bias names token 4; expected ids below 4$"):
        sampler(GenerationConfig(logit_bias={4: 1.0}), vocab_size=4)


@given(LOGITS)
def test_log_probabilities_are_those_of_the_softmax(logits):
    found = log_probabilities(logits)

    assert np.exp(found).sum() == pytest.approx(1)
    np.testing.assert_allclose(found - found.max(), logits - logits.max(), atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop", ["a", ""], r"stop is \('a', ''\); expected texts of at least 1 character"),
        ("stop", 5, "stop is 5; expected texts"),
        ("stop", [1], r"stop is \(1,\); expected texts of at least 1 character"),
        ("stop_ids", 5, "stop_ids is 5; expected integers >= 0"),
        ("logit_bias", [1], r"logit_bias is \[1\]; expected finite numbers by token id"),
        ("logit_bias", {5: 1e300}, "logit_bias is {5: 1e[+]300}; expected finite numbers"),
        ("stop_ids", [3, -1], r"stop_ids is frozenset\(.*\); expected integers >= 0"),
        ("logit_bias", {-1: 2.0}, r"logit_bias is {-1: 2.0}; expected finite numbers by token id"),
        ("logit_bias", {1: True}, r"logit_bias is {1: True}; expected finite numbers by token id"),
        ("logit_bias", {1: math.inf}, r"logit_bias is {1: inf}; expected finite numbers by token"),
    ],
)
def test_collections_are_checked_item_by_item(field, value, message):
    with pytest.raises(GenerationError, match=rf"^{message}"):
        GenerationConfig(**{field: value})


def test_collections_are_taken_as_they_come_and_kept():
    bias = {3: 1.0}
    config = GenerationConfig(stop="END", stop_ids=[4, 4], logit_bias=bias)
    bias[5] = 2.0

    assert (config.stop, config.stop_ids, dict(config.logit_bias)) == (("END",), {4}, {3: 1.0})
    assert GenerationConfig(stop=["a", "b"]).stop == ("a", "b")
    assert GenerationConfig(temperature=1.0, top_k=np.int64(3)).top_k == 3


def test_changes_replace_fields_and_greedy_drops_what_bounds_a_draw():
    config = GenerationConfig(temperature=0.7, top_p=0.9, top_k=5, repetition_penalty=1.2)

    greedy = config.changed({"temperature": 0})

    assert (greedy.top_p, greedy.top_k, greedy.repetition_penalty) == (None, None, 1.2)
    assert config.changed({"top_p": 0.5}).top_p == 0.5
    with pytest.raises(GenerationError, match="top_k has no effect at temperature 0"):
        config.changed({"temperature": 0, "top_k": 3})
    with pytest.raises(GenerationError, match=r"^beams is no generation option; expected"):
        config.changed({"beams": 3})


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 77},
         {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 77}),
        ({"top_p": 0.95, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"temperature": 0.8, "top_k": 0}, {"temperature": 0.8}),
        ({"temperature": 0.8, "length_penalty": 2}, {"temperature": 0.8}),
    ],
)  # fmt: skip
def test_a_bundles_defaults_are_read_as_far_as_they_mean_something(defaults, expected):
    assert GenerationConfig.from_defaults(defaults) == GenerationConfig(**expected)
