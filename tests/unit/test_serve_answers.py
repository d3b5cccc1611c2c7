"""Answers of the protocol, made of results: what is told of their tokens, and at what price."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_runtime import TokenLogprobs, load
from wiola_runtime.reply import Result
from wiola_runtime.text import StreamDecoder
from wiola_serve.answers import CompletionForm, TokenTexts
from wiola_serve.job import News


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    with load(TinyBundle().write(tmp_path_factory.mktemp("bundle") / "tiny")) as model:
        yield model.tokenizer


def ended(tokenizer, ids):
    """Return the news of a finished answer whose tokens are given."""
    decoder = StreamDecoder(tokenizer)
    text = "".join([*map(decoder.push, ids), decoder.flush()])
    told = tuple(TokenLogprobs(i, -0.5, ((i, -0.5),)) for i in ids)
    result = Result(
        text=text, token_ids=tuple(ids), finish_reason="length", prompt_tokens=1, reused_tokens=0,
        seed=None, device="cpu", provider="", timings=None, logprobs=told,
    )  # fmt: skip
    return News(text=text, logprobs=told, result=result)


def test_offsets_are_positions_in_the_text(tokenizer):
    """Also behind a token that has no text, and where a character is of several tokens."""
    unknown = tokenizer.special_id("<unk>")
    ids = [*tokenizer.encode("It ☃"), unknown, *tokenizer.encode("is")]

    choice = CompletionForm(TokenTexts(tokenizer)).choice(ended(tokenizer, ids))

    places = dict(zip(ids, choice["logprobs"]["text_offset"], strict=True))
    assert choice["text"] == "It ☃is"
    assert choice["logprobs"]["tokens"].count("\ufffd") > 1
    assert places[unknown] == 4
    for token, place in zip(
        choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True
    ):
        assert choice["text"][place:].startswith(token) or token in ("<unk>", "\ufffd")


@settings(deadline=None, max_examples=50)
@given(ids=st.lists(st.integers(0, vocab_size() - 1), max_size=40), cut=st.integers(0, 40))
def test_a_stream_tells_what_the_whole_answer_tells(tokenizer, ids, cut):
    news = ended(tokenizer, ids)
    whole = CompletionForm(TokenTexts(tokenizer)).choice(news)["logprobs"]
    form = CompletionForm(TokenTexts(tokenizer))

    pieces = [
        form.delta(News(logprobs=part), 0) for part in (news.logprobs[:cut], news.logprobs[cut:])
    ]

    told = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
    for field in whole:
        assert [entry for one in told for entry in one[field]] == whole[field]
    assert whole["text_offset"] == sorted(whole["text_offset"])
    for token, place in zip(whole["tokens"], whole["text_offset"], strict=True):
        assert news.text[place:].startswith(token) or token[0] == "<" or "\ufffd" in token


def test_a_token_is_decoded_once(tokenizer, monkeypatch):
    """However many are told of, and however long the answer is."""
    news = ended(tokenizer, [7] * 500)
    decode, decoded = type(tokenizer).decode, []
    monkeypatch.setattr(
        type(tokenizer), "decode", lambda self, ids: decoded.append(len(ids)) or decode(self, ids)
    )

    CompletionForm(TokenTexts(tokenizer)).choice(news)

    assert sum(decoded) < 500 * 20
    assert len(decoded) < 2 * 500
