"""Replies: what ends them, what their text is, and what is refused before any work."""

import math

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from support.scripted import ScriptedGraph
from support.tiny_bundle import TinyBundle, tokenizer_json, vocab_size

from wiola_runtime import (
    CapacityError,
    GenerationConfig,
    GenerationError,
    Model,
    Tokenizer,
    WiolaRuntimeError,
    load,
)

EOS, TURN_END = 2, 4
CONTEXT = 40


def scripted(script, *, bos_id=1, eos_ids=(EOS, TURN_END)):
    """Return a model that says the script (text or ids), with a real tokenizer."""
    manifest = TinyBundle(context_length=CONTEXT, bos_id=bos_id, eos_ids=eos_ids).manifest({})
    native = tokenizers.Tokenizer.from_str(tokenizer_json())
    tokenizer = Tokenizer(native, manifest.tokens)
    ids = tokenizer.encode(script) if isinstance(script, str) else script
    graph = ScriptedGraph(ids, vocab_size())
    return Model(manifest, tokenizer, graph, load_seconds=0.5)


def token_count(text):
    return len(tokenizers.Tokenizer.from_str(tokenizer_json()).encode(text).ids)


@pytest.mark.parametrize("ending", ["<eos>", "<|end|>"])
def test_every_eos_token_ends_the_reply_and_leaves_no_text(ending):
    model = scripted(f"good{ending}never")

    result = model.generate("It")

    assert (result.text, result.finish_reason) == ("good", "eos")
    assert model.tokenizer.decode(result.token_ids) == "good"
    assert not {EOS, TURN_END} & set(result.token_ids)


def test_the_budget_ends_the_reply():
    model = scripted("a good fortune")

    result = model.generate("It", max_new_tokens=3)

    assert (len(result.token_ids), result.finish_reason) == (3, "length")
    assert model._engine.graph.fed == [token_count("It"), 1, 1]


@pytest.mark.parametrize("prompt_tokens", [CONTEXT - 1, CONTEXT - 5])
def test_the_context_ends_the_reply(prompt_tokens):
    """Prompt and reply fill the context to its last position."""
    result = scripted([9] * CONTEXT).generate([7] * prompt_tokens, max_new_tokens=100)

    assert prompt_tokens + len(result.token_ids) == CONTEXT
    assert result.finish_reason == "context"


def test_a_budget_that_just_fits_is_a_length():
    result = scripted([9] * CONTEXT).generate([7] * 35, max_new_tokens=5)

    assert result.finish_reason == "length"


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("END", "ab ", "stop"),
        (("b E", "END"), "a", "stop"),
        (("zz", "cde"), "ab END cd", "eos"),
        ("It", "ab END cd", "eos"),
    ],
)
def test_stop_strings_end_the_reply(stop, text, reason):
    """They are not looked for in the prompt."""
    result = scripted("ab END cd<eos>").generate("It", stop=stop)

    assert (result.text, result.finish_reason) == (text, reason)


@given(
    script=st.text("abE ND", min_size=1, max_size=30),
    stops=st.lists(st.text("abEND ", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_nothing_of_a_stop_string_is_streamed(script, stops):
    """Whatever tokens it is made of; what only looked like its beginning comes at the end."""
    ends = sorted((script.find(s) + len(s), script.find(s)) for s in stops if s in script)
    expected = script[: ends[0][1]] if ends else script

    pieces = list(scripted(script + "<eos>").stream("END b E", stop=stops, max_new_tokens=36))

    assert "".join(piece.text for piece in pieces) == pieces[-1].result.text == expected
    assert pieces[-1].result.finish_reason == ("stop" if ends else "eos")


def test_a_special_token_can_be_a_stop_string():
    """It has no text in a reply, so it is found by its id."""
    result = scripted("ab<|end|>cd", eos_ids=()).generate("It", stop=["<|end|>", "x"])

    assert (result.text, result.finish_reason) == ("ab", "stop")


def test_an_emoji_arrives_whole():
    text = "a 👨‍👩‍👧 日本 é"
    pieces = [piece.text for piece in scripted(text + "<eos>").stream("It")]

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(5, vocab_size() - 1), min_size=1, max_size=30), st.data())
def test_the_pieces_are_the_text(script, data):
    """Whatever the tokens, wherever the reply ends."""
    budget = data.draw(st.integers(0, len(script)))
    model = scripted(script)

    *pieces, last = model.stream("It", max_new_tokens=budget)

    assert all(piece.result is None for piece in pieces)
    assert "".join(p.text for p in [*pieces, last]) == last.result.text
    assert last.result.text == model.tokenizer.decode(script[:budget])


def test_no_new_tokens_is_an_empty_reply_without_work():
    model = scripted("never")

    result = model.generate("It", max_new_tokens=0)

    assert (result.text, result.token_ids, result.finish_reason) == ("", (), "length")
    assert model._engine.graph.fed == []


@pytest.mark.parametrize("prompt", ["", [], " ", (), np.asarray([], int)])
def test_an_empty_prompt_starts_from_the_first_token(prompt):
    """A space is a token already."""
    result = scripted("hi<eos>").generate(prompt)

    assert (result.text, result.prompt_tokens) == ("hi", 1)


def test_a_refused_prompt_leaves_the_model_as_it_was():
    model = scripted("hi<eos>")
    for prompt in ([7] * CONTEXT, [7] * (CONTEXT + 1), [7] * 10 * CONTEXT, [-1], [1.5]):
        with pytest.raises(WiolaRuntimeError):
            model.generate(prompt)

    assert model.generate([7] * (CONTEXT - 3)).text == "hi"


def test_every_token_is_fed_and_told_once():
    """The last one of a reply is told, and fed with the next turn."""
    model = scripted([9, 10, 11, 12, EOS, 13, EOS])
    conversation = model.session()
    conversation.generate([7, 8], max_new_tokens=3)
    conversation.generate([5, 6], max_new_tokens=3)
    conversation.generate([5], max_new_tokens=3)

    assert conversation.token_ids == (7, 8, 9, 10, 11, 5, 6, 12, 5, 13)
    assert model._engine.graph.fed == [2, 1, 1, 3, 1, 1, 1]


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_without_a_first_token_is_an_error(prompt):
    with pytest.raises(GenerationError, match=r"prompt is empty .* give at least one token"):
        scripted("hi", bos_id=None).stream(prompt)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        ([7] * 40, {}, CapacityError, r"prompt has 40 tokens, the context 40; shorten"),
        ([7] * 41, {}, CapacityError, r"prompt has 41 tokens, the context 40; shorten"),
        ("It " * 400, {}, CapacityError, r"tokens, the context 40; shorten"),
        (np.ones((1, 2), int), {}, GenerationError, r"prompt has 2 axes; expected token ids"),
        (5, {}, GenerationError, r"prompt is 5; expected text or token ids"),
        (np.array(5), {}, GenerationError, r"prompt is array\(5\); expected text or token ids"),
        (("a", "b"), {}, GenerationError, r"token ids are texts; give several prompts as a list"),
        ([5, True], {}, GenerationError, r"token ids hold truth values; expected integers"),
        ([300], {}, GenerationError, r"token id 300 is outside the vocabulary of 300"),
        ("It", {"max_new_tokens": -1}, GenerationError, r"max_new_tokens is -1; expected"),
        ("It", {"max_new_tokens": 1.5}, GenerationError, r"max_new_tokens is 1.5; expected"),
        ("It", {"temperature": -1}, GenerationError, r"temperature is -1; expected"),
        ("It", {"stop": ["a", ""]}, GenerationError, r"stop is \('a', ''\); expected texts"),
    ],
)
def test_a_bad_call_fails_at_the_call_and_before_any_work(prompt, options, error, message):
    model = scripted("never")

    with pytest.raises(error, match=message):
        model.stream(prompt, **options)

    assert model._engine.graph.fed == []


def test_a_result_says_where_and_how_fast_it_ran():
    model = scripted("good<eos>")

    result = model.generate("It is")
    timings = result.timings

    assert (result.device, result.provider) == ("cpu", "ScriptedExecutionProvider")
    assert (result.prompt_tokens, result.seed) == (token_count("It is"), None)
    assert 0 < timings.prefill_seconds <= timings.first_token_seconds
    assert timings.decode_tokens_per_second * timings.decode_seconds == pytest.approx(
        len(result.token_ids)
    )


def test_an_open_seed_is_drawn_and_reproduces_the_reply(tmp_path):
    with load(TinyBundle().write(tmp_path / "b")) as model:
        first = model.generate("It", max_new_tokens=20, temperature=1.0, top_p=0.9)
        again = [
            model.generate(
                "It", max_new_tokens=20, temperature=1.0, top_p=0.9, seed=first.seed
            ).token_ids
            for _ in range(5)
        ]

    assert set(again) == {first.token_ids}


def test_a_closed_stream_stops_the_work_and_leaves_the_model_usable(tmp_path):
    """Two streams of one model are interleaved, one is dropped, neither disturbs the other."""
    with load(TinyBundle().write(tmp_path / "b")) as model:
        alone = model.generate("It is", max_new_tokens=12).text
        dropped, kept = (model.stream(p, max_new_tokens=12) for p in ("must be", "It is"))
        head = [next(dropped), next(kept)][1].text
        dropped.close()

        assert head + "".join(piece.text for piece in kept) == alone
        assert list(dropped) == []
        assert model.generate("It is", max_new_tokens=12).text == alone


def test_a_closed_model_says_so(tmp_path):
    model = load(TinyBundle().write(tmp_path / "b"))
    model.close()
    model.close()

    with pytest.raises(WiolaRuntimeError, match=r"model tiny is closed; load it again"):
        model.generate("It")


def test_threads_do_not_change_a_seeded_reply(tmp_path):
    folder = TinyBundle().write(tmp_path / "b")
    replies = set()
    for threads in (1, 2):
        with load(folder, threads=threads) as model:
            replies.add(model.generate("It", temperature=1.0, seed=3).token_ids)

    assert len(replies) == 1


def test_stop_ids_end_the_reply_and_end_tokens_can_be_ignored():
    assert scripted([9, 10, 11, 12]).generate("It", stop_ids=[11]).token_ids == (9, 10)
    ignored = scripted([9, EOS, 11, TURN_END]).generate("It", ignore_eos=True, max_new_tokens=4)

    assert ignored.token_ids == (9, EOS, 11, TURN_END)
    assert ignored.finish_reason == "length"


def test_log_probabilities_are_told_for_the_tokens_of_the_reply():
    """The script's token has a logit of 1, all others 0."""
    model = scripted([9, 10, EOS])
    result = model.generate("It", logprobs=2, logit_bias={9: 0.5})

    likely = 1 - math.log(math.e + vocab_size() - 1)
    assert [one.token_id for one in result.logprobs] == [9, 10]
    assert all(one.logprob == pytest.approx(likely) for one in result.logprobs)
    assert [one.top[0] for one in result.logprobs] == [
        (9, pytest.approx(likely)),
        (10, pytest.approx(likely)),
    ]
    assert all(len(one.top) == 2 for one in result.logprobs)
    assert scripted([9]).generate("It", max_new_tokens=1).logprobs is None


def test_the_bundles_defaults_are_taken_unless_something_else_is_said():
    model = scripted([9] * 9)
    model._engine.defaults = GenerationConfig(max_new_tokens=2)

    assert len(model.generate("It").token_ids) == 2
    model._engine.graph.fed.clear()
    assert len(model.generate("It", max_new_tokens=3).token_ids) == 3
    model._engine.graph.fed.clear()
    assert len(model.generate("It", GenerationConfig(max_new_tokens=4)).token_ids) == 4


def test_a_model_without_running_sums_goes_back_to_the_very_token():
    model = scripted([9] * 12)
    conversation = model.session()
    conversation.generate([7] * 6, max_new_tokens=4)
    conversation.rewind(3)

    result = conversation.generate([8], max_new_tokens=1)

    assert model._engine.graph.rewound == (3, ())
    assert result.reused_tokens == 3
    assert conversation.token_ids == (7, 7, 7, 8, 9)
