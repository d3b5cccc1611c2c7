"""OpenAI's own client understands what the server says."""

import json
import re
from pathlib import Path

import openai
import pytest
from support.serve import CHAT, serving, slowed
from support.tiny_bundle import TinyBundle

from wiola_runtime import load
from wiola_serve.guard import Access

HELLO = [{"role": "user", "content": "It is a truth"}]
DRAWN = {"temperature": 0.8, "top_p": 0.9, "seed": 11, "max_tokens": 12}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    with load(TinyBundle(chat=CHAT).write(folder)) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(model):
    with serving(model) as found:
        yield f"{found}/v1"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


def expected(model, prompt="It is a truth", **extra):
    changes = {name: value for name, value in DRAWN.items() if name != "max_tokens"}
    return model.generate(prompt, max_new_tokens=12, **changes, **extra)


def test_a_completion_is_what_the_runtime_generates(client, model):
    answer = client.completions.create(model="tiny", prompt="It is a truth", **DRAWN)

    result = expected(model)
    assert answer.choices[0].text == result.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == result.prompt_tokens
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == result.prompt_tokens + 12
    assert answer.id.startswith("cmpl-")


def test_several_prompts_are_answered_in_their_order(client, model):
    prompts = ["It is", "a truth", "acknowledged"]

    answer = client.completions.create(model="tiny", prompt=prompts, **DRAWN)

    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == [expected(model, p).text for p in prompts]


def test_ids_are_prompts_as_well(client, model):
    ids = model.tokenizer.encode("It is a truth")

    one = client.completions.create(model="tiny", prompt=ids, **DRAWN)
    two = client.completions.create(model="tiny", prompt=[ids, ids[:2]], **DRAWN)

    assert one.choices[0].text == two.choices[0].text == expected(model).text
    assert two.choices[1].text == expected(model, ids[:2]).text


def test_a_streamed_completion_is_the_whole_one_in_pieces(client, model):
    prompts = ["It is", "a truth"]
    stream = client.completions.create(
        model="tiny", prompt=prompts, stream=True, stream_options={"include_usage": True}, **DRAWN
    )

    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage

    assert texts == [expected(model, prompt).text for prompt in prompts]
    assert reasons == ["length", "length"]
    assert usage.completion_tokens == 24


def test_a_chat_is_what_the_runtime_answers(client, model):
    answer = client.chat.completions.create(model="tiny", messages=HELLO, **DRAWN)

    result = model.chat(HELLO, temperature=0.8, top_p=0.9, seed=11, max_new_tokens=12)
    assert answer.choices[0].message.content == result.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.prompt_tokens == result.prompt_tokens


def test_a_streamed_chat_is_the_whole_one_in_pieces(client, model):
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}, **DRAWN
    )

    chunks = list(stream)

    result = model.chat(HELLO, temperature=0.8, top_p=0.9, seed=11, max_new_tokens=12)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == result.text
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == result.prompt_tokens + 12


def test_a_stop_string_and_its_reason(client, model):
    whole = expected(model).text
    stop = whole[4:6]

    answer = client.completions.create(model="tiny", prompt="It is a truth", stop=stop, **DRAWN)

    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_that_ends_by_a_stop_string_has_no_text_of_it(client, model):
    whole = model.chat(HELLO, temperature=0.8, top_p=0.9, seed=11, max_new_tokens=12).text
    stop = whole[4:6]

    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stop=[stop], **DRAWN
        )
    )

    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == whole[: whole.index(stop)]
    assert texts[-1] == ""
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_of_a_completion(client, model):
    answer = client.completions.create(
        model="tiny", prompt="It is a truth", logprobs=2, max_tokens=6, temperature=0
    )

    told = answer.choices[0].logprobs
    result = model.generate("It is a truth", max_new_tokens=6, logprobs=2)
    assert told.token_logprobs == [one.logprob for one in result.logprobs]
    assert all(t in answer.choices[0].text for t in told.tokens if "\ufffd" not in t)
    for token, place in zip(told.tokens, told.text_offset, strict=True):
        assert "\ufffd" in token or answer.choices[0].text[place:].startswith(token)
    for token, logprob, top in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert top[token] == logprob == max(top.values())


def test_log_probabilities_of_a_chat_streamed_and_not(client, model):
    ask = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 3, "max_tokens": 8}

    whole = client.chat.completions.create(**ask).choices[0].logprobs.content
    pieces = [
        token
        for chunk in client.chat.completions.create(stream=True, **ask)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]

    result = model.chat(HELLO, max_new_tokens=8, logprobs=3)
    assert pieces == whole
    assert [token.logprob for token in whole] == [one.logprob for one in result.logprobs]
    assert [len(token.top_logprobs) for token in whole] == [3] * 8
    assert all(token.bytes in (None, list(token.token.encode())) for token in whole)


def test_a_schema_binds_the_answer(client):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False

    answer = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=64,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    bound = client.completions.create(
        model="tiny", prompt="It", max_tokens=9, extra_body={"regex": "(yes|no)"}
    )

    assert json.loads(answer.choices[0].message.content)["a"] in (1, 2)
    assert answer.choices[0].finish_reason == "stop"
    assert bound.choices[0].text in ("yes", "no")


def test_the_example_of_the_document_runs(url, model, capsys):
    text = (Path(__file__).parents[2] / "docs/server.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    code = code.replace("http://127.0.0.1:8000/v1", url).replace("wiola-demo-int8", "tiny")

    exec(compile(code, "docs/server.md", "exec"), names := {})
    names["client"].close()

    result = model.chat([{"role": "user", "content": "Hello"}], max_new_tokens=16)
    assert capsys.readouterr().out == result.text + "\n"


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError, match="model 'other' is not served here; expected"):
        client.models.retrieve("other")


def test_what_is_refused_is_an_error_of_the_client(client):
    with pytest.raises(openai.BadRequestError, match="n is not supported: there is one") as refused:
        client.completions.create(model="tiny", prompt="It", n=2)
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError, match="model 'other' is not served here"):
        client.completions.create(model="other", prompt="It")
    with pytest.raises(openai.BadRequestError, match="the context 600") as refused:
        client.completions.create(model="tiny", prompt=[5] * 600)
    assert refused.value.code == "context_length_exceeded"
    assert "the prompt has 600 tokens" in str(refused.value)
    with pytest.raises(openai.BadRequestError, match="expected finite and >= 0") as refused:
        client.completions.create(model="tiny", prompt="It", temperature=-1)
    assert refused.value.param == "temperature"


def test_a_bundle_without_a_chat_format_says_so(tmp_path):
    with load(TinyBundle().write(tmp_path / "b")) as model, serving(model) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="bundle tiny has no chat format"):
                client.chat.completions.create(model="tiny", messages=HELLO)


def test_a_key_is_wanted_where_one_is_set(model):
    with serving(model, access=Access(key="secret")) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="key is wrong or missing"):
                client.models.list()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
            assert client.models.retrieve("tiny").id == "tiny"


def test_a_full_queue_and_a_late_answer_are_errors_of_the_client(model, monkeypatch):
    graph = model.engine.graph
    monkeypatch.setattr(graph, "run", slowed(graph, 0.02), raising=True)
    with serving(model, rows=1, queue=2, seconds=3) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError, match="not there after 3 seconds"):
                client.completions.create(model="tiny", prompt="It", max_tokens=500)
            with pytest.raises(openai.RateLimitError, match="at most 2 may"):
                stream = client.completions.create(
                    model="tiny", prompt=["a", "b"], max_tokens=500, stream=True
                )
                client.completions.create(model="tiny", prompt=["a", "b"])
            with pytest.raises(openai.APIError, match="not there after 3 seconds"):
                list(stream)
