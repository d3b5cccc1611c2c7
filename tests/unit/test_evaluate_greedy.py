"""Two models continue the same prompts, and the first difference is found."""

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle, vocab_size

import wiola_runtime as wr
from wiola_export.evaluate import greedy
from wiola_export.evaluate.greedy import compare_greedy, cut_prompts

PROMPTS = [[1, 40, 41], [50, 60]]


class Nudged:
    """A model that writes another token at one place; otherwise it is the model it wraps."""

    def __init__(self, model, place):
        self.tokenizer = model.tokenizer
        self._model, self._place = model, place

    @property
    def manifest(self):
        return self._model.manifest

    def generate(self, prompt, config):
        result = self._model.generate(prompt, config)
        ids = list(result.token_ids)
        ids[self._place] = (ids[self._place] + 1) % vocab_size()
        return type("Result", (), {"token_ids": tuple(ids)})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model in which any token would end a reply."""
    tiny = TinyBundle(context_length=96, eos_ids=tuple(range(vocab_size())))
    with wr.load(tiny.write(tmp_path_factory.mktemp("greedy") / "tiny")) as opened:
        yield opened


def test_a_model_writes_what_it_writes(model):
    found = compare_greedy(model, model, PROMPTS)

    assert [one.same_tokens for one in found] == [64, 64]
    assert all(one.tokens == 64 and one.reference == one.candidate for one in found)
    assert found[0].prompt == model.tokenizer.decode(PROMPTS[0])


@pytest.mark.parametrize("place", [0, 7, 63])
def test_the_first_different_token_is_found(model, place):
    for one in compare_greedy(model, Nudged(model, place), PROMPTS):
        assert one.same_tokens == place


def test_a_continuation_ends_with_the_context(model):
    (one,) = compare_greedy(model, model, [list(range(5, 95))])

    assert one.tokens == 96 - 90


def test_prompts_are_starts_of_windows_from_first_to_last():
    windows = np.arange(40 * 64).reshape(40, 64)

    prompts = cut_prompts(windows, context_length=512)

    assert len(prompts) == greedy.PROMPTS
    assert all(prompt == list(range(prompt[0], prompt[0] + 32)) for prompt in prompts)
    assert (prompts[0][0], prompts[-1][0]) == (0, 39 * 64)


def test_prompts_leave_room_in_a_small_context():
    assert {len(p) for p in cut_prompts(np.zeros((2, 16), int), context_length=20)} == {10}
    assert {len(p) for p in cut_prompts(np.zeros((2, 6), int), context_length=20)} == {6}
