"""The fast scores agree with the formulas as a textbook writes them, in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiola_export.evaluate import divergence
from wiola_export.evaluate.divergence import score_tokens


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def oracle(reference, candidate, windows):
    """Negative log likelihoods, divergence and agreement of each prediction, one at a time."""
    rows = []
    for b, window in enumerate(windows):
        for t in range(len(window) - 1):
            p, q = log_softmax(reference[b, t]), log_softmax(candidate[b, t])
            kl = sum(np.exp(p[v]) * (p[v] - q[v]) for v in range(len(p)))
            token = window[t + 1]
            best_p, best_q = set(np.argsort(-p)[:5]), set(np.argsort(-q)[:5])
            shared = len(best_p & best_q) / len(best_p)
            rows.append((-p[token], -q[token], kl, p.argmax() == q.argmax(), shared))
    shape = len(windows), -1
    return [np.array(column).reshape(shape) for column in zip(*rows, strict=True)]


def unequal(logits):
    """Tell the rows in which no logit occurs twice."""
    return (np.diff(np.sort(logits, axis=-1)) > 0).all(-1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocabulary=st.integers(2, 40),
    shape=st.tuples(st.integers(1, 3), st.integers(2, 6)),
    scale=st.sampled_from([1e-3, 1.0, 10.0, 60.0]),
    noise=st.sampled_from([0.0, 1e-3, 0.1, 20.0]),
    shift=st.sampled_from([0.0, -300.0, 1000.0]),
)
def test_scores_agree_with_the_oracle(seed, vocabulary, shape, scale, noise, shift):
    rng = np.random.default_rng(seed)
    reference = rng.normal(shift, scale, (*shape, vocabulary)).astype(np.float32)
    error = rng.normal(0.0, noise, reference.shape)
    candidate = (reference + error).astype(np.float32)
    windows = rng.integers(0, vocabulary, shape)

    scores = score_tokens(reference, candidate, windows)
    expected = oracle(reference, candidate, windows)

    np.testing.assert_allclose(scores.reference_nats, expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(scores.candidate_nats, expected[1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(scores.kl_nats, expected[2], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(scores.same_top1, expected[3])
    # Among equal logits any are the best.
    clear = [unequal(logits[:, :-1]) for logits in (reference, candidate)]
    apart = np.where(clear[0] & clear[1], scores.same_top5 - expected[4], 0)
    np.testing.assert_allclose(apart, 0, atol=1e-6)
    changes = np.exp(-expected[1]) - np.exp(-expected[0])
    np.testing.assert_allclose(scores.probability_changes, changes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noise", [3e-4, 3e-3, 3e-2])
def test_small_divergences_of_a_large_vocabulary_are_exact_enough(noise):
    rng = np.random.default_rng(5)
    reference = rng.normal(0.0, 3.0, (1, 33, 32_000)).astype(np.float32)
    candidate = reference + rng.normal(0.0, noise, reference.shape).astype(np.float32)
    windows = rng.integers(0, 32_000, (1, 33))

    p, q = log_softmax(reference[:, :-1]), log_softmax(candidate[:, :-1])
    expected = (np.exp(p) * (p - q)).sum(-1)
    found = score_tokens(reference, candidate, windows).kl_nats

    assert np.abs(found - expected).max() < 1e-7
    assert abs(found.mean() - expected.mean()) < 2e-8


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 5.0, 100.0]))
def test_equal_logits_diverge_by_exactly_nothing(seed, scale):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, scale, (2, 5, 17)).astype(np.float32)

    scores = score_tokens(logits, logits.copy(), rng.integers(0, 17, (2, 5)))

    assert not scores.kl_nats.any()
    assert scores.same_top1.all()
    assert (scores.same_top5 == 1).all()
    assert not scores.probability_changes.any()
    np.testing.assert_array_equal(scores.reference_nats, scores.candidate_nats)


def test_slices_do_not_change_a_value(monkeypatch):
    rng = np.random.default_rng(3)
    reference, candidate = rng.standard_normal((2, 2, 9, 12)).astype(np.float32)
    windows = rng.integers(0, 12, (2, 9))
    whole = score_tokens(reference, candidate, windows)

    monkeypatch.setattr(divergence, "SLICE_LOGITS", 12 * 5)
    sliced = score_tokens(reference, candidate, windows)

    np.testing.assert_array_equal(sliced.kl_nats, whole.kl_nats)
    np.testing.assert_array_equal(sliced.candidate_nats, whole.candidate_nats)


def test_every_window_keeps_its_own_scores():
    rng = np.random.default_rng(4)
    reference, candidate = rng.standard_normal((2, 3, 6, 11)).astype(np.float32)
    windows = rng.integers(0, 11, (3, 6))
    scores = score_tokens(reference, candidate, windows)

    alone = score_tokens(reference[1:2], candidate[1:2], windows[1:2])
    np.testing.assert_array_equal(scores.windows(slice(1, 2)).kl_nats, alone.kl_nats)
    assert scores.kl_nats.shape == (3, 5)


def test_five_best_of_a_vocabulary_of_three_are_all_three():
    logits = np.random.default_rng(6).standard_normal((1, 4, 3)).astype(np.float32)

    assert (score_tokens(logits, -logits, np.zeros((1, 4), np.int64)).same_top5 == 1).all()


def test_scoring_leaves_the_logits_alone():
    logits = np.random.default_rng(1).standard_normal((1, 4, 8)).astype(np.float32)
    before = logits.copy()

    score_tokens(logits, logits, np.zeros((1, 4), np.int64))

    np.testing.assert_array_equal(logits, before)
