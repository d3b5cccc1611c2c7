"""One reply: from a request and the tokens picked to pieces of text and a result."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from wiola_runtime.clock import Clock, Timings
from wiola_runtime.config import GenerationConfig
from wiola_runtime.engine import Engine
from wiola_runtime.generate import Guesses, Logits, Pick
from wiola_runtime.sampling import log_probabilities, sampler
from wiola_runtime.text import StopFilter, StreamDecoder

FinishReason = Literal["eos", "stop", "length", "context", "cancelled"]


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model itself thought of a token, in nats.

    Attributes:
        top: The likeliest tokens with their log probabilities, likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished reply.

    Attributes:
        token_ids: Every token of the reply but the one that ended it. A stop string may begin
            inside them: `text` is cut before it.
        finish_reason: An end token came (`eos`), a stop string came or schema or expression are
            complete (`stop`), `max_new_tokens` are there, the context is full, or someone
            cancelled.
        prompt_tokens: Tokens before the reply.
        reused_tokens: Those of them whose state was there already.
        seed: What reproduces the reply; None where nothing was drawn.
        device: Where the graph ran.
        provider: ONNX Runtime's name of it.
        logprobs: One entry a token of `token_ids`, where they were asked for.
        guesses: How guessing went, where it was asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    reused_tokens: int
    seed: int | None
    device: str
    provider: str
    timings: Timings
    logprobs: tuple[TokenLogprobs, ...] | None = None
    guesses: Guesses | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some whole characters of a reply; `result` is there in the last one."""

    text: str
    result: Result | None = None


class Reply:
    """A reply on its way: tokens go in one by one, text comes out.

    Args:
        engine: What the bundle's replies share.
        prompt_ids: The whole text before the reply.
        config: Seeded.

    Attributes:
        reused_tokens: Tokens of the prompt that need not be fed.
    """

    def __init__(self, engine: Engine, prompt_ids: Sequence[int], config: GenerationConfig) -> None:
        self._engine = engine
        self.config = config
        self.prompt_ids = prompt_ids
        self.reused_tokens = 0
        # A special token has no text in a reply, so as a stop string it is looked for by its id.
        special = {text: engine.tokenizer.special_id(text) for text in config.stop}
        self._stops = StopFilter([text for text, found in special.items() if found is None])
        named = {found for found in special.values() if found is not None}
        self._stop_ids = config.stop_ids | named
        self._decoder = StreamDecoder(engine.tokenizer)
        self._end_ids = set() if config.ignore_eos else set(engine.manifest.tokens.eos_ids)
        self._grammar = engine.grammar(config, self._end_ids | self._stop_ids)
        self._choose = sampler(
            config,
            vocab_size=engine.manifest.vocab_size,
            prompt_ids=prompt_ids,
            grammar=self._grammar,
        )
        self._logprobs: list[TokenLogprobs] = []
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.ended_by: FinishReason | None = None
        self.guesses: Guesses | None = None
        room = engine.manifest.context_length - len(prompt_ids)
        self.budget = min(config.max_new_tokens, room)
        self._spent: FinishReason = "length" if config.max_new_tokens <= room else "context"
        if self._is_complete:  # an expression that only the empty text matches
            self.budget, self.ended_by = 0, "stop"

    @property
    def pick(self) -> Pick:
        """What chooses the next token of this reply from logits (V,)."""
        return self._choose if self.config.logprobs is None else self._pick_and_tell

    @property
    def told(self) -> Sequence[TokenLogprobs]:
        """What is known by now of each of `token_ids`, where log probabilities were asked for."""
        return self._logprobs[: len(self.token_ids)]

    def add(self, token_id: int) -> str:
        """Take the next token; return the text that is certain now. See `ended_by`."""
        self.ended_by = self._ending(token_id)
        if self.ended_by is not None:
            return ""
        self.token_ids.append(token_id)
        text = self._stops.push(self._decoder.push(token_id))
        self._texts.append(text)
        if self._stops.stopped or self._is_complete:
            self.ended_by = "stop"
        elif len(self.token_ids) >= self.budget:
            self.ended_by = self._spent
        return text

    def finish(self, clock: Clock) -> Piece:
        """Return what was held back, and the result."""
        tail = self._stops.push(self._decoder.flush()) + self._stops.flush()
        self._texts.append(tail)
        config, graph = self.config, self._engine.graph
        result = Result(
            text="".join(self._texts),
            token_ids=tuple(self.token_ids),
            finish_reason="stop" if self._stops.stopped else self.ended_by or self._spent,
            prompt_tokens=len(self.prompt_ids),
            reused_tokens=self.reused_tokens,
            seed=config.seed,
            device=graph.device,
            provider=graph.provider,
            timings=clock.timings(len(self.prompt_ids) - self.reused_tokens),
            logprobs=None if config.logprobs is None else tuple(self.told),
            guesses=self.guesses,
        )
        return Piece(text=tail, result=result)

    @property
    def _is_complete(self) -> bool:
        return self._grammar is not None and self._grammar.is_complete

    def _ending(self, token_id: int) -> FinishReason | None:
        if token_id in self._end_ids:
            return "eos"
        return "stop" if token_id in self._stop_ids else None

    def _pick_and_tell(self, logits: Logits) -> int:
        token_id = self._choose(logits)
        scores = log_probabilities(logits)
        count = min(self.config.logprobs or 0, scores.size)
        best = np.argsort(-scores, kind="stable")[:count]
        top = tuple((int(i), float(scores[i])) for i in best)
        self._logprobs.append(TokenLogprobs(token_id, float(scores[token_id]), top))
        return token_id
