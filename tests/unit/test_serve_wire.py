"""Requests of the protocol: what is read, what is ignored, and what is refused."""

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wiola_runtime import GenerationError
from wiola_runtime.config import GenerationConfig
from wiola_serve import wire
from wiola_serve.limits import Limits
from wiola_serve.refusal import Refusal, refusal_of

HELLO = [{"role": "user", "content": "Hello"}]


def completion(**fields):
    return wire.read_completion({"prompt": "It is", **fields}, "tiny")


def chat(**fields):
    return wire.read_chat({"messages": HELLO, **fields}, "tiny")


def changes(**fields):
    return completion(**fields).options.changes


def test_every_number_of_the_protocol_reaches_the_runtime():
    found = changes(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, typical_p=0.8,
        presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1, seed=3,
        stop=["a", "b"], logit_bias={"7": -100}, logprobs=2, stop_token_ids=[9], ignore_eos=True,
    )  # fmt: skip

    assert GenerationConfig().changed(found) == GenerationConfig(
        max_new_tokens=5, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, typical_p=0.8,
        presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1, seed=3,
        stop=("a", "b"), logit_bias={7: -100}, logprobs=2, stop_ids={9}, ignore_eos=True,
    )  # fmt: skip


def test_nothing_is_changed_where_nothing_is_chosen():
    assert changes() == {}
    assert chat().options == wire.Options(changes={}, streams=False, tells_usage=False)


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ({"max_completion_tokens": 7}, {"max_new_tokens": 7}),
        ({"max_tokens": 7, "max_completion_tokens": 7}, {"max_new_tokens": 7}),
        ({"top_k": 0}, {"top_k": None}),
        ({"top_k": -1}, {"top_k": None}),
        ({"temperature": 0, "top_p": 0.9, "min_p": 0.1}, {"temperature": 0}),
        ({"stop": "end"}, {"stop": ["end"]}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {}},
                }
            },
            {"json_schema": {}},
        ),
    ],
)
def test_what_the_protocol_says_in_other_words(sent, found):
    assert changes(**sent) == found


def test_log_probabilities_of_a_chat_are_asked_for_in_two_fields():
    assert chat(logprobs=True).options.changes == {"logprobs": 0}
    assert chat(logprobs=True, top_logprobs=5).options.changes == {"logprobs": 5}
    assert chat(logprobs=False).options.changes == {}


@pytest.mark.parametrize("name", sorted(wire.IGNORED))
def test_what_changes_no_answer_is_ignored(name):
    assert changes(**{name: "anything"}) == {}


@pytest.mark.parametrize(
    ("name", "value"), [(n, value) for n, (values, _) in wire.NEUTRAL.items() for value in values]
)
def test_what_asks_for_nothing_is_ignored(name, value):
    assert changes(**{name: value}) == {}


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ([1, 2],)),
        ([[1], [2, 3]], ([1], [2, 3])),
    ],
)
def test_prompts_are_told_apart(prompt, found):
    assert completion(prompt=prompt).prompts == found


def test_messages_have_text_in_one_part_or_several():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Hm", "tool_calls": [], "refusal": None},
    ]

    assert chat(messages=messages).messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hm"},
    )


@pytest.mark.parametrize(
    ("sent", "message", "param"),
    [
        ({"n": 2}, "n is not supported: there is one answer to a prompt; send", "n"),
        ({"best_of": 3}, "best_of is not supported: there is one answer", "best_of"),
        ({"echo": True}, "echo is not supported: the answer does not repeat", "echo"),
        ({"suffix": "x"}, "suffix is not supported: the model continues texts", "suffix"),
        ({"foo": 1}, "foo is not supported: this server does not know it", "foo"),
        ({"prompt": ""}, None, None),
        ({"prompt": []}, "prompt is missing; expected text, token ids, or a list", "prompt"),
        ({"prompt": 5}, "prompt is missing; expected text, token ids", "prompt"),
        ({"model": "x"}, "model 'x' is not served here; expected 'tiny'", "model"),
        ({"model": 1}, "model is 1; expected a text", "model"),
        ({"stream": 1}, "stream is 1; expected true or false", "stream"),
        ({"stream_options": {}}, "stream_options has no effect without stream", "stream_options"),
        (
            {"stream": True, "stream_options": {"x": 1}},
            "stream_options has x; expected include_usage",
            "stream_options",
        ),
        ({"logprobs": True}, "logprobs is True; expected an integer", "logprobs"),
        ({"logprobs": 6}, "logprobs is 6; expected 0 to 5", "logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens differs from", "max_tokens"),
        ({"stop": ["a", ""]}, "stop is not a text or a list of texts of at least", "stop"),
        ({"stop": 3}, "stop is not a text or a list", "stop"),
        ({"stop": ["a"] * 17}, "stop has 17 texts; expected at most 16", "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias has keys that are no token ids", "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias is [1]; expected an object", "logit_bias"),
        ({"logit_bias": {"9" * 4301: 1}}, "logit_bias has keys that are no token", "logit_bias"),
        ({"logit_bias": {"7": True}}, "logit_bias has values that are no numbers", "logit_bias"),
        ({"temperature": True}, "temperature is True; expected a number", "temperature"),
        ({"top_p": "1"}, "top_p is '1'; expected a number", "top_p"),
        ({"presence_penalty": True}, "presence_penalty is True; expected", "presence_penalty"),
        ({"seed": False}, "seed is False; expected an integer", "seed"),
        ({"top_k": False}, "top_k is False; expected an integer", "top_k"),
        ({"max_tokens": True}, "max_tokens is True; expected an integer", "max_tokens"),
        ({"ignore_eos": "false"}, "ignore_eos is 'false'; expected true or false", "ignore_eos"),
        ({"stop_token_ids": 7}, "stop_token_ids is 7; expected a list", "stop_token_ids"),
        ({"regex": 5}, "regex is 5; expected a text", "regex"),
        ({"n": True}, "n is not supported", "n"),
        ({"echo": 0}, "echo is not supported", "echo"),
        (
            {"stream": True, "stream_options": {"include_usage": "false"}},
            "include_usage is 'false'; expected true or false",
            "include_usage",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": None}}},
            "is not one of",
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
            "is not one of",
            "response_format",
        ),
        ({"response_format": {"type": "xml"}}, 'is not one of {"type": "text"}', "response_format"),
        ({"response_format": {"type": "json_schema"}}, "is not one of", "response_format"),
    ],
)
def test_what_a_completion_is_refused_for(sent, message, param):
    if message is None:  # an empty text is one: the runtime starts from the first token
        assert completion(**sent).prompts == ("",)
        return
    with pytest.raises(Refusal) as refused:
        completion(**sent)
    assert message in str(refused.value)
    assert refused.value.param == param
    assert refused.value.status == (404 if sent == {"model": "x"} else 400)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"tools": [{}]}, "tools is not supported: the model calls no tools; bind the answer"),
        ({"functions": [{}]}, "functions is not supported: the model calls no functions"),
        ({"tool_choice": "required"}, "tool_choice is not supported"),
        ({"prompt": "a"}, "prompt is not supported: this server does not know it"),
        ({"top_logprobs": 2}, "top_logprobs has no effect without logprobs"),
        ({"logprobs": 2}, "logprobs is 2; expected true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; expected 0 to 20"),
        ({"messages": []}, "messages are missing; expected a list of at least one"),
        ({"messages": "hi"}, "messages are missing"),
        ({"messages": ["hi"]}, "messages[0] is no object; expected role and content"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role is 'tool'; expected"),
        ({"messages": [{"content": "a"}]}, "messages[0].role is None"),
        ({"messages": [{"role": [], "content": "a"}]}, "messages[0].role is []; expected one of"),
        ({"messages": [{"role": {}, "content": "a"}]}, "messages[0].role is {}; expected one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is no text"),
        ({"messages": [HELLO[0], {"role": "user", "content": 5}]}, "messages[1].content is no"),
        ({"messages": [{**HELLO[0], "name": "Ann"}]}, "messages[0].name is not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content has a part that is no text; the model reads nothing else",
        ),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "has a part that is no text"),
    ],
)
def test_what_a_chat_is_refused_for(sent, message):
    with pytest.raises(Refusal, match=r".") as refused:
        chat(**sent)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is no JSON"),
        (b"{", "the body is no JSON"),
        (b"[1]", "the body is a JSON list; send a JSON object"),
        (b"\xff", "the body is no JSON"),
        (b"[" * 100_000, "the body is no JSON"),
        (b'{"temperature": NaN}', "the body is no JSON"),
        (b'{"prompt": "\\ud800"}', "the body is no JSON"),
    ],
)
def test_a_body_is_a_json_object(content, message):
    with pytest.raises(Refusal, match=message):
        wire.read_body(content)


def test_null_is_as_good_as_nothing():
    assert wire.read_body(b'{"prompt": "a", "suffix": null}') == {"prompt": "a"}


SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
FLAT = SCALAR | st.lists(SCALAR, max_size=3)
JSON = FLAT | st.dictionaries(st.text(max_size=5), FLAT, max_size=2) | st.lists(FLAT, max_size=2)
KNOWN = st.sampled_from(sorted({*wire.NAMES, *wire.OTHERS, *wire.NEUTRAL, "prompt", "messages"}))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=st.dictionaries(KNOWN | st.text(max_size=5), JSON, max_size=4))
def test_no_body_breaks_the_reader(body):
    """It is read, or refused in words."""
    content = json.dumps({"messages": HELLO, "prompt": "a"} | body).encode()
    for read in (wire.read_completion, wire.read_chat):
        with contextlib.suppress(Refusal, GenerationError):
            fields = wire.read_body(content)
            fields.pop("messages" if read is wire.read_completion else "prompt", None)
            GenerationConfig().changed(read(fields, "tiny").options.changes)


def test_the_runtimes_refusals_name_the_fields_of_the_protocol():
    with pytest.raises(GenerationError) as raised:
        GenerationConfig().changed(changes(max_tokens=-1))

    refused = refusal_of(raised.value, wire.FIELDS)

    assert str(refused) == "max_tokens is -1; expected an integer >= 0"
    assert refused.param == "max_tokens"
    assert refusal_of(refused, {}) is refused
    assert str(refusal_of(GenerationError("all is lost"), {})) == "all is lost"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("rows", 0, "1"), ("seconds", float("inf"), "1"), ("conversations", -1, "0")],
)
def test_limits_are_checked(field, value, expected):
    with pytest.raises(GenerationError, match=f"{field} is {value}; expected at least {expected}"):
        Limits(**{field: value})
