"""Several prompts together: each gets the reply that it gets alone."""

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_runtime import BundleError, Cancellation, CapacityError, GenerationError, load
from wiola_runtime.batch import is_several

CONTEXT = 96
IDS = np.random.default_rng(3).integers(5, vocab_size(), 400).tolist()
RAGGED = [IDS[:3], IDS[10:50], IDS[60:61], IDS[70:85]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    with load(TinyBundle(context_length=CONTEXT, eos_ids=(7, 30, 90)).write(folder)) as opened:
        yield opened


@pytest.mark.parametrize("config", [{}, {"temperature": 0.8, "seed": 4, "repetition_penalty": 1.2}])
def test_each_row_is_what_it_is_alone(model, config):
    """Of unequal lengths, ending at different times, drawn with the same seed."""
    together = model.generate(RAGGED, max_new_tokens=30, **config)
    alone = [model.generate(prompt, max_new_tokens=30, **config) for prompt in RAGGED]

    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert (one.prompt_tokens, one.seed) == (other.prompt_tokens, other.seed)


def test_texts_and_stop_strings_work_row_by_row(model):
    prompts = ["It is", "a truth", "acknowledged, that"]
    alone = [model.generate(prompt, max_new_tokens=20, stop="e") for prompt in prompts]

    together = model.generate(prompts, max_new_tokens=20, stop="e")

    assert [result.text for result in together] == [result.text for result in alone]
    assert all("e" not in result.text for result in together)


def test_finished_rows_leave_the_batch(model, monkeypatch):
    """The graph is never given a row that has ended."""
    sizes = []
    graph = model._engine.graph
    run = type(graph).run

    def counting(self, state, token_ids, *rest):
        sizes.append(token_ids.shape)
        return run(self, state, token_ids, *rest)

    monkeypatch.setattr(type(graph), "run", counting)
    results = model.generate(RAGGED, max_new_tokens=30)

    steps = [shape[0] for shape in sizes[len(RAGGED) :]]
    lengths = [len(r.token_ids) - (r.finish_reason in ("length", "context")) for r in results]
    assert steps == [sum(length > at for length in lengths) for at in range(max(lengths))]


def test_no_tokens_are_made_where_none_are_wanted(model):
    results = model.generate(RAGGED, max_new_tokens=0)

    assert [(r.token_ids, r.finish_reason) for r in results] == [((), "length")] * 4


def test_a_cancelled_batch_returns_what_is_there(model):
    cancel = Cancellation()
    cancel.cancel()

    results = model.generate(RAGGED, max_new_tokens=9, cancel=cancel)

    assert [(r.token_ids, r.finish_reason) for r in results] == [((), "cancelled")] * 4


def test_a_row_that_fails_is_an_error_of_the_batch(model, monkeypatch):
    run = model.engine.graph.run
    monkeypatch.setattr(model.engine.graph, "run", lambda *call: run(*call) * np.float32("nan"))

    with pytest.raises(BundleError, match="the graph returned a logit of nan"):
        model.generate(RAGGED, max_new_tokens=3)


def test_a_prompt_that_does_not_fit_is_refused_before_any_work(model):
    with pytest.raises(CapacityError, match="the prompt has 96 tokens"):
        model.generate([IDS[:3], IDS[:96]])
    with pytest.raises(GenerationError, match="on_text takes one prompt"):
        model.generate([IDS[:3]], on_text=print)
    with pytest.raises(GenerationError, match="draft_tokens takes one prompt"):
        model.generate([IDS[:3]], draft_tokens=4)


def test_a_growing_cache_takes_rows_of_one_length_only(tmp_path):
    bundle = TinyBundle(cache="growing", context_length=CONTEXT)
    with load(bundle.write(tmp_path / "b")) as model:
        equal = model.generate([IDS[:9], IDS[9:18]], max_new_tokens=5)
        alone = model.generate(IDS[9:18], max_new_tokens=5)
        with pytest.raises(CapacityError, match=r"must have one length .*, found \[3, 9\] tok"):
            model.generate([IDS[:9], IDS[:3]], max_new_tokens=5)

    assert equal[1].token_ids == alone.token_ids


@pytest.mark.parametrize(
    ("prompt", "several"),
    [
        ("text", False), (["text"], True), ([1, 2], False), ([[1, 2]], True), ([], False),
        ((1, 2), False), ([np.int64(3)], False), ([np.asarray([3, 4])], True), ("", False),
    ],
)  # fmt: skip
def test_prompts_are_told_from_a_prompt(prompt, several):
    assert is_several(prompt) == several
