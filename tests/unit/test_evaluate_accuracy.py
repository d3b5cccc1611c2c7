"""A candidate is compared block by block, on exactly the reference's windows."""

import re
import tracemalloc

import numpy as np
import pytest
from support.fake_model import TableModel

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.accuracy import compare, compare_pairs, in_blocks
from wiola_export.evaluate.drop import summarize

WINDOWS = np.random.default_rng(8).integers(0, 50, (7, 16))


def drop_of(candidate, *, reference=None, windows=WINDOWS, size=3):
    reference = reference or TableModel()
    return compare(in_blocks(reference.logits, windows, size), candidate.logits, windows)


def test_a_model_against_itself_loses_nothing():
    drop = drop_of(TableModel())

    assert drop.ppl_ratio == 1.0
    assert (drop.kl_nats.mean, drop.kl_nats.max, drop.top1_agreement) == (0.0, 0.0, 1.0)


def test_every_window_gives_one_prediction_less_than_tokens():
    drop = drop_of(TableModel())

    assert (drop.tokens, drop.windows, drop.context) == (7 * 15, 7, 16)


def test_perplexity_is_that_of_the_next_token():
    windows = np.tile(np.arange(6), (2, 1))
    model = TableModel(vocabulary=6)
    model.table[:] = np.log(np.full((6, 6), 0.1))
    model.table[np.arange(5), np.arange(1, 6)] = np.log(0.5)

    class Flat:
        logits = staticmethod(lambda ids: model.table[ids])

    drop = drop_of(Flat, reference=Flat, windows=windows)

    assert drop.reference_ppl == pytest.approx(2.0, rel=1e-6)


def test_the_size_of_a_block_changes_nothing():
    candidate = TableModel(noise=0.5)

    assert drop_of(candidate, size=1) == drop_of(candidate, size=7) == drop_of(candidate, size=4)


def test_the_candidate_is_called_with_the_windows_of_each_block():
    candidate = TableModel()
    drop_of(candidate)

    assert candidate.calls == [(3, 16), (3, 16), (1, 16)]


def test_more_noise_is_a_larger_drop():
    small, large = drop_of(TableModel(noise=0.1)), drop_of(TableModel(noise=1.0))

    assert 0 < small.kl_nats.median <= small.kl_nats.mean < large.kl_nats.mean
    assert small.kl_nats.median < small.kl_nats.p99 <= small.kl_nats.max
    assert small.top1_agreement > large.top1_agreement
    assert large.ppl_ratio != 1.0


def test_memory_does_not_grow_with_the_windows():
    def peak(windows):
        reference, candidate = TableModel(vocabulary=900), TableModel(vocabulary=900)
        blocks, others = in_blocks(reference.logits, windows, 1), {"it": candidate.logits}
        tracemalloc.start()
        compare_pairs("reference", blocks, others, [("reference", "it")], windows)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    windows = np.random.default_rng(2).integers(0, 900, (40, 64))
    one_window_bytes = 64 * 900 * 4

    assert peak(windows) - peak(windows[:4]) < one_window_bytes


def test_every_pair_is_what_comparing_the_two_alone_gives():
    models = {name: TableModel(noise=noise) for name, noise in (("a", 0), ("b", 0.3), ("c", 1))}
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    blocks = in_blocks(models["a"].logits, WINDOWS, 3)
    # One of the others has been run already and gives its blocks in order, one is called.
    others = {"b": in_blocks(models["b"].logits, WINDOWS, 3), "c": models["c"].logits}

    found = compare_pairs("a", blocks, others, pairs, WINDOWS)

    assert list(found) == pairs
    for reference, candidate in pairs:
        alone = drop_of(models[candidate], reference=models[reference])
        assert summarize(found[reference, candidate]) == alone


def refused(message, reference, candidate, windows=WINDOWS):
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        compare(reference, candidate, windows)


def test_a_reference_that_ends_early_is_refused():
    model = TableModel()

    refused(
        "the reference gave logits for 4 windows, expected 7; "
        "measure both models on the same windows",
        in_blocks(model.logits, WINDOWS[:4], 2),
        model.logits,
    )


def test_a_reference_with_more_windows_is_refused():
    model = TableModel()

    refused(
        "reference logits have shape (4, 16, 50) for tokens of shape (3, 16); "
        "expected one row of logits per token",
        in_blocks(model.logits, WINDOWS, 4),
        model.logits,
        WINDOWS[:3],
    )


def test_a_candidate_without_a_row_per_token_is_refused():
    model = TableModel()

    refused(
        "candidate logits have shape (7, 50) for tokens of shape (7, 16); "
        "expected one row of logits per token",
        [model.logits(WINDOWS)],
        lambda ids: model.logits(ids)[:, -1],
    )


def test_two_vocabularies_are_refused():
    model = TableModel()

    refused(
        "the reference has 50 tokens, the candidate 60; "
        "compare a bundle with the checkpoint it was made from",
        [model.logits(WINDOWS)],
        TableModel(vocabulary=60).logits,
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_named_by_window(value):
    def broken(ids):
        logits = TableModel().logits(ids)
        logits[1, 3, 5] = value
        return logits

    refused(
        "candidate logits of window 4 are not all finite; "
        "the model is broken there and has no perplexity",
        iter([TableModel().logits(WINDOWS[:3]), TableModel().logits(WINDOWS[3:])]),
        lambda ids: broken(ids) if len(ids) == 4 else TableModel().logits(ids),
    )


def test_a_loss_beyond_floats_is_refused():
    def broken(ids):
        return np.eye(50, dtype=np.float32)[ids] * np.float32(1e6)

    windows = np.tile(np.arange(16), (1, 1))
    refused(
        "the candidate loses 1e+06 nats per token, where guessing loses about 10; "
        "the model is broken and has no perplexity",
        [TableModel().logits(windows)],
        broken,
        windows,
    )
