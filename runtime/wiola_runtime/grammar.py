"""Replies that keep to a JSON schema or a regular expression; alone in knowing llguidance.

Before each token, what may follow is a mask over the vocabulary; the rest cannot be chosen. On one
core that takes 70 to 200 us a token for 4096 tokens, 100 to 430 us for 32000, some ms for a few of
them (the first among them), and once a bundle 60 or 360 ms to read its tokenizer.

Axes: V vocabulary.
"""

import math
import re
from collections.abc import Collection
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.config import GenerationConfig
from wiola_runtime.errors import GenerationError
from wiola_runtime.generate import Logits
from wiola_runtime.text import Tokenizer

if TYPE_CHECKING:
    import llguidance

# JSON allows any amount of white space between its parts, and small models get lost in it.
WHITE_SPACE = " ?"
# What reading an expression may cost: 0.15 s at most. An enum of 10000 texts takes 140,000.
FUEL = 200_000
# States of the machine that tells multiples, which no limit of llguidance bounds: 0.2 s at most.
MOST_STATES = 20_000
MULTIPLES = re.compile(r'"multipleOf":([\d.eE+-]+)')


class Vocabulary:
    """The texts of a bundle's tokens, as llguidance keeps them.

    Args:
        tokenizer: The bundle's.
        size: Tokens of the model; those that have no text are never chosen.

    Raises:
        GenerationError: llguidance is not installed, or cannot read the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        try:
            import llguidance  # noqa: PLC0415  an extra: its absence must become an instruction
        except ModuleNotFoundError as error:
            raise GenerationError(
                "json_schema and regex need llguidance; run: pip install 'wiola-runtime[grammar]'"
            ) from error
        try:
            self.native = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=size)
        except ValueError as error:
            raise GenerationError(
                f"this bundle's tokenizer does not go with json_schema and regex ({error})"
            ) from error
        self.size = size

    def matcher(self, config: GenerationConfig) -> "llguidance.LLMatcher":
        """Return a reader of replies.

        Raises:
            GenerationError: llguidance refuses the schema or the expression.
        """
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415  see above

        field = "regex" if config.json_schema is None else "json_schema"
        try:
            if config.json_schema is None:
                grammar = LLMatcher.grammar_from_regex(config.regex or "")
            else:
                _check_multiples(config.json_schema)
                grammar = LLMatcher.grammar_from_json_schema(
                    config.json_schema, defaults={"whitespace_pattern": WHITE_SPACE}
                )
        except ValueError as error:  # nested too deep, numbers too large, or no Unicode
            raise GenerationError(f"{field} cannot be kept to: {error}") from error
        limits = LLParserLimits(initial_lexer_fuel=FUEL)
        matcher = LLMatcher(self.native, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise GenerationError(f"{field} cannot be kept to: {_reason(matcher)}")
        return matcher


class Grammar:
    """How far a reply has come in what it keeps to.

    Args:
        vocabulary: The bundle's.
        config: Has a schema or an expression.
        end_ids: Tokens that end the reply; they may come where it could end.

    Attributes:
        is_complete: Whether nothing can follow.

    Raises:
        GenerationError: llguidance refuses the schema or the expression.
    """

    def __init__(
        self, vocabulary: Vocabulary, config: GenerationConfig, end_ids: Collection[int]
    ) -> None:
        self._vocabulary = vocabulary
        self._matcher = vocabulary.matcher(config)
        self._end_ids = [token_id for token_id in end_ids if token_id < vocabulary.size]
        self.is_complete = False
        self._allowed = self._look()

    def __call__(self, logits: Logits) -> Logits:
        """Return logits (V,) in which only what may follow is possible."""
        return np.where(self._allowed, logits, np.float32(-np.inf))

    def note(self, token_id: int) -> None:
        """Take the next token of the reply into account.

        Raises:
            GenerationError: Schema or expression are more than llguidance can follow.
        """
        if token_id not in self._end_ids:
            self._matcher.consume_token(token_id)
            self._allowed = self._look()

    def _look(self) -> NDArray[np.bool_]:
        """Return which tokens (V,) may follow."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocabulary.size].view(np.bool_)
        # What ends a reply is known better here.
        allowed[self._vocabulary.native.eos_tokens] = False
        self.is_complete = not allowed.any()
        can_end = self._matcher.is_accepting()
        if self._matcher.is_error() or (self.is_complete and not can_end):
            reason = _reason(self._matcher) or "no token of the vocabulary can follow"
            raise GenerationError(f"the reply cannot keep to its schema or expression: {reason}")
        allowed[self._end_ids] |= can_end
        return allowed


def _check_multiples(schema: str) -> None:
    digits = {Decimal(text).normalize().as_tuple().digits for text in MULTIPLES.findall(schema)}
    if math.prod(max(1, int("".join(map(str, number)))) for number in digits) > MOST_STATES:
        raise ValueError("the numbers of multipleOf are too many or too large")


def _reason(matcher: "llguidance.LLMatcher") -> str:
    """Return what llguidance says, in one line."""
    told = [line.strip() for line in matcher.get_error().splitlines()]
    return " ".join([*told[:1], *(line for line in told[1:] if line.startswith("error:"))])
