"""Replies that keep to a schema or an expression, whatever the model would rather say."""

import dataclasses
import json
import re
import sys
import time

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted import ScriptedGraph
from support.tiny_bundle import TinyBundle, tokenizer_json, vocab_size

from wiola_runtime import (
    BundleError,
    GenerationConfig,
    GenerationError,
    Model,
    Tokenizer,
    load,
)

EOS = 2
PERSON = {
    "type": "object",
    "properties": {"né": {"enum": ["日本", "😀", "it is"]}, "age": {"type": "boolean"}},
    "required": ["né", "age"],
    "additionalProperties": False,
}
CHOICES = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 50.0, "seed": 4, "top_p": 0.9},
    {"temperature": 1.0, "seed": 5, "top_k": 1},
    {"temperature": 1.0, "seed": 6, "typical_p": 0.5},
    {"temperature": 1.0, "seed": 7, "min_p": 0.2},
    {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {72: 100.0, 73: 50.0}},
    {"logprobs": 2},
    {"draft_tokens": 4},
    {"ignore_eos": True},
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grammar") / "b"
    with load(TinyBundle(eos_ids=(EOS,)).write(folder), threads=1) as opened:
        yield opened


def scripted(script, *, larger=0, eos_ids=(EOS,), special=True):
    """Return a model that wants to say some ids, of a vocabulary larger than its tokenizer's."""
    manifest = dataclasses.replace(
        TinyBundle(eos_ids=eos_ids).manifest({}), vocab_size=vocab_size() + larger
    )
    content = json.loads(tokenizer_json())
    if not special:
        content["added_tokens"] = []
    native = tokenizers.Tokenizer.from_str(json.dumps(content))
    graph = ScriptedGraph(script, manifest.vocab_size)
    return Model(manifest, Tokenizer(native, manifest.tokens), graph, load_seconds=0.0)


CHECKS = {
    "boolean": lambda value, _: isinstance(value, bool),
    "null": lambda value, _: value is None,
    "integer": lambda value, schema: (
        type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    ),
    "string": lambda value, schema: isinstance(value, str) and len(value) <= schema["maxLength"],
    "array": lambda value, schema: (
        isinstance(value, list)
        and schema["minItems"] <= len(value) <= schema["maxItems"]
        and all(fits(item, schema["items"]) for item in value)
    ),
    "object": lambda value, schema: (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value) <= set(schema["properties"])
        and all(fits(item, schema["properties"][name]) for name, item in value.items())
    ),
}


def fits(value, schema):
    """Validate what `schemas` makes."""
    if "enum" in schema:
        return value in schema["enum"]
    return CHECKS[schema["type"]](value, schema)


def schemas():
    words = st.sampled_from(["a", "it is", "né", "日本", "😀", 'quo"te', "new\nline"])
    low = st.integers(-300, 300)
    integers = st.tuples(low, st.integers(0, 200)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
    )
    leaves = st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
        st.integers(0, 6).map(lambda most: {"type": "string", "maxLength": most}),
        st.lists(words, min_size=1, max_size=3, unique=True).map(lambda found: {"enum": found}),
        integers,
    )
    objects = st.dictionaries(words, leaves, min_size=1, max_size=3).flatmap(
        lambda known: st.sets(st.sampled_from(sorted(known))).map(
            lambda required: {
                "type": "object",
                "properties": known,
                "required": sorted(required),
                "additionalProperties": False,
            }
        )
    )
    arrays = leaves.map(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 3})
    return st.one_of(leaves, objects, arrays)


@settings(max_examples=40)
@given(schema=schemas(), choice=st.sampled_from(CHOICES))
def test_a_reply_is_what_its_schema_allows(model, schema, choice):
    result = model.generate("It is", json_schema=schema, max_new_tokens=500, **choice)

    assert fits(json.loads(result.text), schema)
    assert result.finish_reason in ("stop", "eos")


EXPRESSIONS = (
    "[a-c]{2,9}",
    "(yes|no)( indeed)?",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "日本(語|人)?",
    "[😀👨é]{1,4}",
    "a/b",
    "a|",
    r"\{\"x\": [01]\}",
    "(ab){3}c?",
    r"[^\n]{5}",
    "(?i)it is",
)


@settings(max_examples=30)
@given(expression=st.sampled_from(EXPRESSIONS), choice=st.sampled_from(CHOICES))
def test_a_reply_is_what_its_expression_matches(model, expression, choice):
    result = model.generate("It is", regex=expression, max_new_tokens=100, **choice)

    assert re.fullmatch(expression, result.text)
    assert result.finish_reason in ("stop", "eos")


@settings(max_examples=15)
@given(schema=schemas(), temperature=st.sampled_from([0.0, 1.0]), drafts=st.integers(1, 8))
def test_guesses_and_batches_give_the_same_replies(model, schema, temperature, drafts):
    seed = {"seed": 5} if temperature else {}
    config = GenerationConfig(
        json_schema=schema, temperature=temperature, max_new_tokens=80, **seed
    )
    prompts = ["It is a truth, It is a truth", "man"]

    alone = [model.generate(prompt, config) for prompt in prompts]
    guessed = [model.generate(prompt, config, draft_tokens=drafts) for prompt in prompts]
    together = model.generate(prompts, config)

    expected = [(result.token_ids, result.finish_reason) for result in alone]
    assert [(r.token_ids, r.finish_reason) for r in guessed] == expected
    assert [(r.token_ids, r.finish_reason) for r in together] == expected


def test_the_reply_ends_where_nothing_can_follow():
    """The last token is fed to nothing, and no end token is asked for."""
    model = scripted([9] * 10, eos_ids=())

    result = model.generate("It", regex="ab")

    assert (result.text, result.finish_reason) == ("ab", "stop")
    assert len(model._engine.graph.fed) == len(result.token_ids)


def test_an_end_token_comes_where_the_reply_may_end_and_nowhere_else():
    model = scripted([EOS] * 10)

    result = model.generate("It", regex="[ab]{3,9}")

    assert (len(result.text), result.finish_reason) == (3, "eos")
    assert EOS not in result.token_ids


def test_a_reply_that_ignores_end_tokens_goes_on_as_far_as_it_may():
    model = scripted([EOS] * 10)

    result = model.generate("It", regex="[ab]{3,6}", ignore_eos=True)

    assert (len(result.text), result.finish_reason) == (6, "stop")


@pytest.mark.parametrize("stop", [{"stop": "<|end|>"}, {"stop_ids": [4]}, {"stop_ids": [4, 9999]}])
def test_a_stop_token_comes_where_the_reply_may_end_and_nowhere_else(stop):
    model = scripted([4] * 10)

    result = model.generate("It", regex="[ab]{2,9}", **stop)

    assert (len(result.text), result.finish_reason) == (2, "stop")


def test_a_stop_string_ends_the_reply_early(model):
    result = model.generate("It", regex="abcdef", stop="de")

    assert (result.text, result.finish_reason) == ("abc", "stop")


def test_what_does_not_fit_into_the_budget_is_cut(model):
    result = model.generate("It", regex="(ab){40}", max_new_tokens=5)

    assert (len(result.token_ids), result.finish_reason) == (5, "length")
    assert ("ab" * 40).startswith(result.text)


@pytest.mark.parametrize("prompts", ["It", ["It", "is"]])
def test_an_expression_of_the_empty_text_gives_an_empty_reply(model, prompts):
    results = model.generate(prompts, regex="()")

    for result in results if isinstance(results, list) else [results]:
        assert (result.text, result.token_ids, result.finish_reason) == ("", (), "stop")


def test_tokens_without_a_text_are_never_chosen():
    """A model's vocabulary is often padded; its tokenizer may also name no special token."""
    beyond = vocab_size() + 7
    for special in (True, False):
        model = scripted([beyond, EOS, 4, beyond] * 8, larger=10, eos_ids=(), special=special)

        result = model.generate("It", regex="[ab]{12}")

        assert re.fullmatch("[ab]{12}", result.text)
        assert max(result.token_ids) < vocab_size()


def test_log_probabilities_are_those_of_the_model(model):
    ids = model.tokenizer.encode("It is")

    result = model.generate(ids, regex="zq", logprobs=3)

    for place, told in enumerate(result.logprobs):
        logits = model.logits([*ids, *result.token_ids[:place]])[-1].astype(np.float64)
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert told.logprob == pytest.approx(expected[told.token_id], abs=1e-4)
        assert told.top[0][0] == expected.argmax()


def test_a_logit_that_is_no_number_is_an_error_even_where_it_is_excluded():
    model = scripted([9])
    run = model._engine.graph.run

    def broken(*arguments):
        logits = run(*arguments)
        logits[0, 0, 9] = np.nan
        return logits

    model._engine.graph.run = broken
    with pytest.raises(BundleError, match="returned a logit of nan"):
        model.generate("It", regex="ab")


def test_a_conversation_goes_on_behind_a_reply_that_kept_to_a_schema(model):
    conversation = model.session()
    first = conversation.generate("It is", json_schema=PERSON, max_new_tokens=200)
    second = conversation.generate(" so", max_new_tokens=8)

    prompt = [*model.tokenizer.encode("It is"), *first.token_ids]
    prompt += model.tokenizer.encode(" so", begins=False)
    assert json.loads(first.text)["né"] in PERSON["properties"]["né"]["enum"]
    assert second.token_ids == model.generate(prompt, max_new_tokens=8).token_ids


def test_a_text_and_a_mapping_are_one_schema():
    text = json.dumps(PERSON, indent=4)
    configs = [GenerationConfig(json_schema=schema) for schema in (PERSON, text)]

    assert configs[0] == configs[1]
    assert len(set(configs)) == 1
    assert json.loads(configs[0].json_schema) == PERSON
    assert configs[0].changed({"json_schema": None}).json_schema is None


def test_there_is_little_white_space(model):
    """JSON would allow any amount, in which a small model gets lost."""
    result = model.generate("It", json_schema=PERSON, temperature=50.0, seed=1)

    assert "  " not in result.text
    assert "\n" not in result.text


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"json_schema": "{"}, r"json_schema is no JSON \(Expecting property name"),
        ({"json_schema": {"a": {1}}}, r"json_schema is no JSON \(Object of type set"),
        ({"json_schema": {"minimum": float("nan")}}, r"json_schema is no JSON \(Out of range"),
        ({"json_schema": [1]}, r"json_schema is \[1\]; expected a JSON object, as text or mapping"),
        ({"json_schema": "true"}, r"json_schema is 'true'; expected a JSON object"),
        ({"regex": ""}, "regex is ; expected text of some length, or None"),
        ({"regex": 3}, "regex is 3; expected text of some length, or None"),
        ({"regex": "a", "json_schema": {}}, "json_schema and regex exclude each other; give one"),
    ],
)
def test_what_is_no_schema_and_no_expression_is_refused_at_once(choice, message):
    with pytest.raises(GenerationError, match=rf"^{message}"):
        GenerationConfig(**choice)


def _nested(depth):
    return {"items": _nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"json_schema": {"type": "foo"}}, r"json_schema cannot be kept to: Invalid type: foo$"),
        ({"json_schema": {"not": {}}}, r"json_schema cannot be kept to: Unimplemented keys: .*not"),
        ({"json_schema": {"$ref": "#/no"}}, r"json_schema cannot be kept to: Pointer '/no' does "),
        ({"json_schema": {"enum": []}}, r"json_schema cannot be kept to: Unsatisfiable schema"),
        ({"json_schema": {"x-guidance": {"z": 1}}}, r"json_schema cannot be kept to: unknown fi"),
        ({"json_schema": _nested(200)}, r"json_schema cannot be kept to: recursion limit"),
        ({"json_schema": {"minimum": 10**400}}, r"json_schema cannot be kept to: number out"),
        ({"json_schema": {"const": "\ud800"}}, r"json_schema cannot be kept to: Value is not"),
        ({"json_schema": {"enum": [str(i) * 9 for i in range(20000)]}}, r"json_schema .* too big"),
        ({"json_schema": {"multipleOf": 999983}}, "json_schema cannot be kept to: the numbers of"),
        (
            {"json_schema": {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}},
            "json_schema cannot be kept to: the numbers of multipleOf are too many or too large",
        ),
        ({"regex": "\ud800"}, r"regex cannot be kept to: 'utf-8' codec"),
        ({"regex": "("}, r"regex cannot be kept to: .*error: unclosed group$"),
        ({"regex": "a(?=b)"}, r"regex cannot be kept to: .*look-around, .* is not supported$"),
    ],
)
def test_what_cannot_be_kept_to_is_said_when_the_reply_is_begun(model, choice, message):
    conversation = model.session()

    with pytest.raises(GenerationError, match=rf"^{message}") as raised:
        conversation.stream("It is", **choice)

    assert "\n" not in str(raised.value)
    assert conversation.token_count == 0


@pytest.mark.parametrize("regex", ["a{100000}", "((a{1000}){1000}){1000}N"])
def test_a_short_expression_cannot_cost_seconds(model, regex):
    model.generate("It", regex="a", max_new_tokens=1)  # reads the tokenizer
    began = time.process_time()

    with pytest.raises(GenerationError, match="too many expressions constructed"):
        model.generate("It", regex=regex, max_new_tokens=1)

    assert time.process_time() - began < 1


def test_schemas_of_real_size_are_kept_to(model):
    fields = {f"field_{i}": {"type": ["string", "integer"][i % 2]} for i in range(300)}
    for schema in (
        {"type": "object", "properties": fields, "required": list(fields)},
        {"enum": [f"value number {i}" for i in range(5000)]},
        {"properties": {"a": {"multipleOf": 0.01}, "b": {"multipleOf": 60, "type": "integer"}}},
        {"type": "string", "pattern": r"^https?://[^\s]{1,2000}$"},
    ):
        assert model.generate("It", json_schema=schema, max_new_tokens=3).token_ids


def test_a_vocabulary_that_cannot_write_what_is_demanded_says_so():
    """Only a tokenizer that lacks some bytes has such a one."""
    content = json.loads(tokenizer_json())
    kept = [piece for piece in content["model"]["vocab"] if piece not in ("z", "<eos>")]
    content["model"] = {"type": "BPE", "vocab": {p: i for i, p in enumerate(kept)}, "merges": []}
    content["added_tokens"] = []
    manifest = TinyBundle(bos_id=None).manifest({})
    native = tokenizers.Tokenizer.from_str(json.dumps(content))
    graph = ScriptedGraph([9] * 9, vocab_size())
    model = Model(manifest, Tokenizer(native, manifest.tokens), graph, load_seconds=0.0)

    with pytest.raises(GenerationError, match=r"^the reply cannot keep to its schema or "):
        model.generate([5], regex="az")


def test_a_tokenizer_that_llguidance_cannot_read_is_an_error():
    """Its words have no bytes of their own."""
    native = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    manifest = TinyBundle(bos_id=None).manifest({})
    tokenizer = Tokenizer(native, manifest.tokens)
    model = Model(manifest, tokenizer, ScriptedGraph([0], vocab_size()), load_seconds=0.0)

    with pytest.raises(GenerationError, match=r"^this bundle's tokenizer does not go with json"):
        model.generate([0], regex="ab")


def test_without_llguidance_there_is_an_instruction(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)

    with pytest.raises(GenerationError, match=r"run: pip install 'wiola-runtime\[grammar\]'$"):
        scripted([9]).generate("It", regex="a")


def test_other_replies_do_not_need_llguidance(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)

    assert scripted([9]).generate("It", max_new_tokens=1).token_ids == (9,)
