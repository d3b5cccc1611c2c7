"""The requests of the protocol: JSON in, checked dataclasses in the runtime's words out.

A field that would change the answer and is not known is refused; one that would not is ignored.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from wiola_runtime.chat import Message
from wiola_runtime.config import GenerationChanges
from wiola_serve.refusal import NOT_FOUND, Refusal

MOST_STOPS, MOST_DIGITS = 16, 20
MOST_LOGPROBS, MOST_TOP_LOGPROBS = 5, 20  # of completions and of chats, as in the API
Body = Mapping[str, Any]
Prompt = str | list[int]

# Names and types in the protocol, or in what other servers add to it; in GenerationConfig too.
NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty",
)  # fmt: skip
OTHER_KINDS = {"top_k": int, "seed": int, "ignore_eos": bool, "regex": str, "stop_token_ids": list}
KINDS: Mapping[str, type[Any]] = dict.fromkeys(NUMBERS, float) | OTHER_KINDS
NAMES = {name: name for name in KINDS} | {"stop_token_ids": "stop_ids"}
LONGEST = ("max_tokens", "max_completion_tokens")
FIELDS = {field: name for name, field in NAMES.items()} | {
    "max_new_tokens": "max_tokens", "json_schema": "response_format", "logprobs": "logprobs",
    "logit_bias": "logit_bias", "stop": "stop", "prompt": "prompt",
}  # fmt: skip
DRAWS = ("top_p", "top_k", "min_p", "typical_p")
OTHERS = {
    "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "stop",
    "logit_bias", "logprobs", "response_format",
}  # fmt: skip
IGNORED = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls",
}  # fmt: skip
ONE_ANSWER = "there is one answer to a prompt; send the request again for another"
UNKNOWN = "this server does not know it; leave it out"
# Not supported, but for these values, which ask for nothing; and what to do instead.
NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "n": ((1,), ONE_ANSWER),
    "best_of": ((1,), ONE_ANSWER),
    "echo": ((False,), "the answer does not repeat the prompt; put it before the answer"),
    "suffix": (("",), "the model continues texts and cannot fill gaps; leave it out"),
    "tools": (([],), "the model calls no tools; bind the answer with response_format instead"),
    "tool_choice": (("none", "auto"), UNKNOWN),
    "functions": (([],), "the model calls no functions; bind the answer with response_format"),
    "function_call": (("none", "auto"), UNKNOWN),
    "modalities": ((["text"],), UNKNOWN),
}
WORDS: Mapping[type[Any], str] = {
    int: "an integer", float: "a number", bool: "true or false", str: "a text",
    dict: "an object", list: "a list",
}  # fmt: skip
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What completions and chats have in common.

    Attributes:
        changes: What differs from the bundle's defaults.
        streams: Whether the answer is sent token by token.
        tells_usage: Whether the end of a stream says how many tokens there were.
    """

    changes: GenerationChanges
    streams: bool
    tells_usage: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Texts to continue."""

    prompts: tuple[Prompt, ...]
    options: Options


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation to answer."""

    messages: tuple[Message, ...]
    options: Options


def read_body(content: bytes) -> dict[str, Any]:
    """Parse a body; fields that are null are as good as left out.

    Raises:
        Refusal: It is no JSON object.
    """
    try:
        found = json.loads(content)
        # Python reads more than JSON is: NaN, and halves of characters, which no UTF-8 can hold.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is no JSON ({error}); send a JSON object") from error
    if not isinstance(found, dict):
        raise Refusal(f"the body is a JSON {type(found).__name__}; send a JSON object")
    return {name: value for name, value in found.items() if value is not None}


def read_completion(body: Body, model: str) -> CompletionRequest:
    """Read the request of `/v1/completions`.

    Raises:
        Refusal: A field is unknown, not supported, or of another type.
    """
    require_known(body, {"prompt"})
    changes = _changes(body)
    if (count := _of(body, "logprobs", int)) is not None:
        changes["logprobs"] = _count("logprobs", count, MOST_LOGPROBS)
    return CompletionRequest(
        prompts=_prompts(body.get("prompt")), options=_options(body, changes, model)
    )


def read_chat(body: Body, model: str) -> ChatRequest:
    """Read the request of `/v1/chat/completions`.

    Raises:
        Refusal: A field is unknown, not supported, or of another type.
    """
    require_known(body, {"messages", "top_logprobs"})
    changes = _changes(body)
    count = _of(body, "top_logprobs", int)
    if _of(body, "logprobs", bool):
        changes["logprobs"] = _count("top_logprobs", count or 0, MOST_TOP_LOGPROBS)
    elif count is not None:
        _refuse("top_logprobs", "has no effect without logprobs; send logprobs: true with it")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse("messages", "are missing; expected a list of at least one message")
    return ChatRequest(
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages)),
        options=_options(body, changes, model),
    )


def require_known(body: Body, own: set[str]) -> None:
    """Check that every field is supported, ignored, or asks for nothing.

    Raises:
        Refusal: One is not.
    """
    for name, value in body.items():
        if name in NAMES or name in OTHERS or name in IGNORED or name in own:
            continue
        neutral, reason = NEUTRAL.get(name, ((), UNKNOWN))
        if repr(value) not in map(repr, neutral):  # 1 is not true
            raise Refusal(
                f"{name} is not supported: {reason}", code="unsupported_parameter", param=name
            )


def require_model(named: str | None, model: str) -> None:
    """Check that a model, if one is named, is the one there is.

    Raises:
        Refusal: It is another.
    """
    if named not in (None, model):
        raise Refusal(
            f"model {named!r} is not served here; expected {model!r}",
            status=NOT_FOUND, code="model_not_found", param="model",
        )  # fmt: skip


def _options(body: Body, changes: dict[str, Any], model: str) -> Options:
    require_model(_of(body, "model", str), model)
    streams = bool(_of(body, "stream", bool))
    extra = _of(body, "stream_options", dict)
    if extra is not None and not streams:
        _refuse("stream_options", "has no effect without stream; send stream: true with it")
    unknown = sorted((extra or {}).keys() - {"include_usage", "include_obfuscation"})
    if unknown:
        _refuse("stream_options", f"has {', '.join(unknown)}; expected include_usage")
    return Options(
        changes=cast("GenerationChanges", changes),
        streams=streams,
        tells_usage=bool(_of(extra or {}, "include_usage", bool)),
    )


def _changes(body: Body) -> dict[str, Any]:
    """Return the fields of GenerationConfig that a request sets."""
    found = {NAMES[name]: _of(body, name, KINDS[name]) for name in KINDS if name in body}
    if found.get("top_k") in (0, -1):
        found["top_k"] = None
    if found.get("temperature") == 0:  # the likeliest token, whatever else is sent along
        found = {name: value for name, value in found.items() if name not in DRAWS}
    if lengths := [_of(body, name, int) for name in LONGEST if name in body]:
        if len(set(lengths)) > 1:
            _refuse("max_tokens", "differs from max_completion_tokens; send one of them")
        found["max_new_tokens"] = lengths[0]
    if "stop" in body:
        found["stop"] = _stops(body["stop"])
    if "logit_bias" in body:
        found["logit_bias"] = _bias(_of(body, "logit_bias", dict) or {})
    if (schema := _schema(_of(body, "response_format", dict))) is not None:
        found["json_schema"] = schema
    return found


def _schema(chosen: Body | None) -> Body | None:
    kind = "text" if chosen is None else chosen.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = (chosen or {}).get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if kind == "json_schema" and isinstance(schema, dict):
        return schema
    return _refuse(
        "response_format",
        'is not one of {"type": "text"}, {"type": "json_object"}, '
        '{"type": "json_schema", "json_schema": {"schema": {...}}}',
    )


def _stops(stop: object) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        _refuse("stop", "is not a text or a list of texts of at least 1 character")
    if len(stops) > MOST_STOPS:
        _refuse("stop", f"has {len(stops)} texts; expected at most {MOST_STOPS}")
    return stops


def _bias(bias: Mapping[str, Any]) -> dict[int, Any]:
    if not all(key.isascii() and key.isdecimal() and len(key) < MOST_DIGITS for key in bias):
        _refuse("logit_bias", "has keys that are no token ids; expected integers as texts")
    if not all(type(value) in (int, float) for value in bias.values()):
        _refuse("logit_bias", "has values that are no numbers; expected -100 to 100")
    return {int(key): value for key, value in bias.items()}


def _prompts(prompt: object) -> tuple[Prompt, ...]:
    """Tell one prompt from several; ids are checked by the runtime."""
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        _refuse("prompt", "is missing; expected text, token ids, or a list of one of them")
    if all(isinstance(one, str | list) for one in prompt):
        return tuple(prompt)
    return (prompt,)


def _message(message: object, where: str) -> Message:
    if not isinstance(message, dict):
        _refuse(where, "is no object; expected role and content")
    given = {name: value for name, value in message.items() if value is not None}
    unknown = sorted(name for name in given if name not in ("role", "content") and given[name])
    if unknown:
        _refuse(f"{where}.{unknown[0]}", "is not supported: a message is its role and content")
    if given.get("role") not in tuple(ROLES):
        _refuse(f"{where}.role", f"is {given.get('role')!r}; expected one of {', '.join(ROLES)}")
    return {"role": ROLES[given["role"]], "content": _content(given.get("content"), where)}


def _content(content: object, where: str) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        _refuse(f"{where}.content", "is no text; expected text, or a list of parts of text")
    said = [part for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    texts = [part["text"] for part in said if isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        _refuse(f"{where}.content", "has a part that is no text; the model reads nothing else")
    return "".join(texts)


def _of(body: Body, name: str, kind: type[Any]) -> Any:  # noqa: ANN401  of that kind
    """Return a field of a type, or None where it is not there."""
    value = body.get(name)
    kinds = (int, float) if kind is float else (kind,)
    if value is not None and type(value) not in kinds:  # true is no number
        _refuse(name, f"is {value!r}; expected {WORDS[kind]}")
    return value


def _count(name: str, count: int, most: int) -> int:
    return count if 0 <= count <= most else _refuse(name, f"is {count}; expected 0 to {most}")


def _refuse(param: str, found: str) -> NoReturn:
    raise Refusal(f"{param} {found}", param=param)
