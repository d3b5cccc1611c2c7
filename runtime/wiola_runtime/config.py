"""How a reply is made: every number that a caller may choose, checked when it is chosen."""

import dataclasses
import json
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from types import MappingProxyType
from typing import Any, Self, TypedDict, cast

from wiola_runtime.errors import GenerationError

# Choices among likely tokens: without effect where the likeliest is always taken.
DRAWS = ("top_k", "top_p", "min_p", "typical_p")
# These keep every token, so nobody is misled where nothing is drawn: clients send them unasked.
NEUTRAL = {"top_p": 1, "min_p": 0, "typical_p": 1}
MOST_LOGPROBS = 100
LARGEST = 1e12  # float32 logits take it
MOST_DRAFT_TOKENS = 64


class GenerationChanges(TypedDict, total=False):
    """The fields of `GenerationConfig`, as keywords of a call."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_new_tokens: int
    stop: str | Collection[str]
    stop_ids: Collection[int]
    ignore_eos: bool
    logprobs: int | None
    draft_tokens: int
    json_schema: str | Mapping[str, object] | None
    regex: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """How to choose each token, and when to end.

    Attributes:
        temperature: Divides the logits; 0 always takes the highest.
        top_k: Keep the k most likely tokens.
        top_p: Keep the smallest set of most likely tokens that reaches this probability.
        min_p: Keep tokens of at least this share of the best token's probability.
        typical_p: Keep the tokens whose information is closest to the expected one, as many as
            reach this probability (locally typical sampling, arXiv 2202.00666).
        repetition_penalty: Divides the positive and multiplies the negative logits of tokens
            that prompt or reply already hold (arXiv 1909.05858, section 4.1).
        presence_penalty: Taken off the logits of tokens that the reply already holds.
        frequency_penalty: The same for every time that it holds them.
        logit_bias: Added to the logits of these token ids.
        seed: Same seed, same reply, on the same machine; None draws one.
        max_new_tokens: Longest reply.
        stop: Texts that end a reply; they are not returned, nor anything after them.
        stop_ids: Token ids that end a reply, besides the bundle's own.
        ignore_eos: Go on after the bundle's own end tokens, which are then text as any other; for
            measurements.
        logprobs: For every token, report its log probability and those of so many likeliest
            tokens; None reports nothing. They are the model's own, before any choice made here.
        draft_tokens: Guess so many tokens ahead where the text repeats itself, and check them in
            one pass: the same reply, sooner, as far as the kernels round one token and several
            alike (floats do; of two nearly equal tokens, quantized weights may take the other).
            0 guesses nothing.
        json_schema: The reply is JSON that this schema allows, given as text or as a mapping; kept
            as text. Needs `wiola-runtime[grammar]`.
        regex: The reply matches this as a whole: syntax of Rust's crate `regex`, so no look-around,
            and digits are those of every script. Needs `wiola-runtime[grammar]`.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict, hash=False)
    seed: int | None = None
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    draft_tokens: int = 0
    json_schema: str | None = None
    regex: str | None = None

    def __post_init__(self) -> None:
        """Take collections as they come, then check every field."""
        stop: str | Collection[str] = self.stop
        texts = [stop] if isinstance(stop, str) else stop
        _collect(self, "stop", tuple, texts, "texts")
        _collect(self, "stop_ids", frozenset, self.stop_ids, "integers >= 0")
        bias = "finite numbers by token id"
        _collect(self, "logit_bias", lambda v: MappingProxyType(dict(v)), self.logit_bias, bias)
        _check(self, "temperature", lambda v: math.isfinite(v) and v >= 0, "finite and >= 0")
        _check(self, "top_k", _optional(_counts_from(1)), "an integer >= 1, or None")
        _check(self, "top_p", _optional(lambda v: 0 < v <= 1), "in (0, 1]")
        _check(self, "min_p", _optional(lambda v: 0 <= v <= 1), "in [0, 1]")
        _check(self, "typical_p", _optional(lambda v: 0 < v <= 1), "in (0, 1]")
        _check(self, "repetition_penalty", lambda v: math.isfinite(v) and v > 0, "finite and > 0")
        _check(self, "repetition_penalty", lambda v: 1 / LARGEST < v < LARGEST, "of usual size")
        for penalty in ("presence_penalty", "frequency_penalty"):
            _check(self, penalty, math.isfinite, "a finite number")
            _check(self, penalty, lambda v: abs(v) < LARGEST, "of usual size")
        _check(self, "logit_bias", _is_bias, bias)
        _check(self, "seed", _optional(_counts_from(0)), "an integer >= 0, or None")
        _check(self, "max_new_tokens", _counts_from(0), "an integer >= 0")
        _check(
            self, "stop", lambda texts: all(map(_is_text, texts)), "texts of at least 1 character"
        )
        _check(self, "stop_ids", lambda ids: all(map(_counts_from(0), ids)), "integers >= 0")
        _check(self, "ignore_eos", _is_truth, "True or False")
        few, guesses = f"an integer from 0 to {MOST_LOGPROBS}", _counts_from(0, MOST_DRAFT_TOKENS)
        _check(self, "logprobs", _optional(_counts_from(0, MOST_LOGPROBS)), f"{few}, or None")
        _check(self, "draft_tokens", guesses, f"an integer from 0 to {MOST_DRAFT_TOKENS}")
        object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        _check(self, "regex", _optional(_is_text), "text of some length, or None")
        self._refuse_contradictions()

    def changed(self, changes: GenerationChanges) -> Self:
        """Return the config with some fields replaced.

        What bounds a draw goes where the temperature becomes 0, unless it is named as well.

        Raises:
            GenerationError: A field is unknown or out of its range.
        """
        known = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(changes.keys() - set(known))
        if unknown:
            raise GenerationError(
                f"{', '.join(unknown)} is no generation option; expected some of {', '.join(known)}"
            )
        idle: dict[str, Any] = dict.fromkeys(DRAWS) if changes.get("temperature") == 0 else {}
        return dataclasses.replace(self, **{**idle, **changes})

    @classmethod
    def from_defaults(cls, defaults: Mapping[str, float]) -> Self:
        """Read what a bundle's `generation_config` says of these fields.

        Numbers that are drawn with count only where it samples: a temperature is then there.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        chosen: dict[str, Any] = {name: v for name, v in defaults.items() if name in known}
        draws = DRAWS if chosen.get("temperature") else ()
        for name in DRAWS:
            # As in transformers, a top_k of 0 keeps every token.
            if name not in draws or chosen.get(name) == 0:
                chosen.pop(name, None)
        return cls(**chosen)

    def seeded(self) -> Self:
        """Return the same choice with its seed settled, so that a result can report it."""
        if self.temperature == 0 or self.seed is not None:
            return self
        return dataclasses.replace(self, seed=secrets.randbits(32))

    def _refuse_contradictions(self) -> None:
        for name in DRAWS:
            if self.temperature == 0 and getattr(self, name) not in (None, NEUTRAL.get(name)):
                raise GenerationError(
                    f"{name} has no effect at temperature 0; leave it out or raise temperature"
                )
        if self.json_schema is not None and self.regex is not None:
            raise GenerationError("json_schema and regex exclude each other; give one of them")


Valid = Callable[[Any], object]


def is_count(value: object, minimum: int) -> bool:
    """Tell whether a value is an integer of at least `minimum`, numpy's included."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and int(cast("int", value)) >= minimum


def _counts_from(minimum: int, most: float = math.inf) -> Valid:
    return lambda value: is_count(value, minimum) and value <= most


def _optional(valid: Valid) -> Valid:
    return lambda value: value is None or valid(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_bias(bias: Mapping[int, float]) -> bool:
    return all(
        is_count(i, 0) and not _is_truth(v) and math.isfinite(v) and abs(v) < LARGEST
        for i, v in bias.items()
    )


def _is_truth(value: object) -> bool:
    return isinstance(value, bool) or type(value).__name__ == "bool"  # numpy's, not imported here


def _schema_text(schema: object) -> str | None:
    """Return a schema as text in one notation, its keys in the order given."""
    if schema is None:
        return None
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
        if isinstance(parsed, Mapping):
            compact = (",", ":")
            return json.dumps(dict(parsed), ensure_ascii=False, allow_nan=False, separators=compact)
    except (TypeError, ValueError, RecursionError) as error:
        raise GenerationError(f"json_schema is no JSON ({error}); expected a schema") from error
    raise GenerationError(f"json_schema is {schema!r}; expected a JSON object, as text or mapping")


def _collect(
    config: GenerationConfig, field: str, kind: Callable[[Any], object], value: object, wanted: str
) -> None:
    """Take a collection as it comes."""
    try:
        object.__setattr__(config, field, kind(value))
    except (TypeError, ValueError) as error:
        raise GenerationError(f"{field} is {value!r}; expected {wanted}") from error


def _check(config: GenerationConfig, field: str, valid: Valid, expected: str) -> None:
    value = getattr(config, field)
    try:
        fits = valid(value) and _is_truth(value) == (field == "ignore_eos")
    except (TypeError, ValueError, OverflowError):  # a value that cannot even be compared
        fits = False
    if not fits:
        shown = dict(value) if isinstance(value, Mapping) else value
        raise GenerationError(f"{field} is {shown}; expected {expected}")
