"""One reply: from a checked request to pieces of text and a result."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Literal

from wiola_runtime.errors import GenerationError
from wiola_runtime.generate import generate
from wiola_runtime.graph import Graph
from wiola_runtime.manifest import Manifest
from wiola_runtime.sampling import Sampling, is_count, sampler
from wiola_runtime.scoring import Row
from wiola_runtime.text import StopFilter, StreamDecoder, Tokenizer

FinishReason = Literal["eos", "stop", "length", "context"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a reply went; a slow reader of the stream does not count.

    Attributes:
        prefill_seconds: The prompt's pass and the choice of the first token.
        first_token_seconds: The same and the allocation of the state.
        decode_seconds: All later tokens.
    """

    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished reply.

    Attributes:
        token_ids: Every token of the reply but the one that ended it. A stop string may begin
            inside them: `text` is cut before it.
        finish_reason: An end token came, a stop string came, `max_new_tokens` are there, or the
            context is full.
        seed: What reproduces the reply; None where nothing was drawn.
        device: Where the graph ran.
        provider: ONNX Runtime's name of it.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    seed: int | None
    device: str
    provider: str
    timings: Timings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some whole characters of a reply; `result` is there in the last one."""

    text: str
    result: Result | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to continue, how, and how far; `prompt_ids` are checked and leave room."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling

    def __post_init__(self) -> None:
        if not is_count(self.max_new_tokens, 0):
            raise GenerationError(
                f"max_new_tokens is {self.max_new_tokens}; expected an integer >= 0"
            )


def reply(
    graph: Graph, manifest: Manifest, tokenizer: Tokenizer, request: Request
) -> Iterator[Piece]:
    """Return the reply to a request as an iterator of pieces; the work starts with the first.

    Raises:
        GenerationError: A stop string is empty.
    """
    # A special token has no text in a reply, so as a stop string it is looked for by its id.
    special = {text: tokenizer.special_id(text) for text in request.stop}
    return _Reply(
        graph=graph,
        manifest=manifest,
        request=request,
        decoder=StreamDecoder(tokenizer),
        stops=StopFilter([text for text, token_id in special.items() if token_id is None]),
        stop_ids=frozenset(token_id for token_id in special.values() if token_id is not None),
    ).pieces()


@dataclasses.dataclass(slots=True, kw_only=True)
class _Reply:
    """A reply on its way."""

    graph: Graph
    manifest: Manifest
    request: Request
    decoder: StreamDecoder
    stops: StopFilter
    stop_ids: frozenset[int]
    token_ids: list[int] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    first_token_seconds: float = 0.0
    step_seconds: list[float] = dataclasses.field(default_factory=list)
    ended_by: FinishReason | None = None

    def pieces(self) -> Iterator[Piece]:
        for token_id in self._tokens():
            text = self.stops.push(self.decoder.push(token_id))
            self.texts.append(text)
            if text:
                yield Piece(text=text)
            if self.stops.stopped:
                break
        tail = self.stops.push(self.decoder.flush()) + self.stops.flush()
        self.texts.append(tail)
        yield Piece(text=tail, result=self._result())

    def _tokens(self) -> Iterator[int]:
        """Yield the tokens before the one that ends the reply, measuring each."""
        request, started = self.request, time.perf_counter()
        pick = sampler(
            request.sampling,
            vocab_size=self.manifest.vocab_size,
            prompt_ids=request.prompt_ids,
        )
        budget = min(request.max_new_tokens, self._room())
        row = Row(self.graph)
        loop = generate(row, request.prompt_ids, pick=pick, max_new_tokens=budget)
        began = time.perf_counter()
        while (token_id := next(loop, None)) is not None:
            now = time.perf_counter()
            self.step_seconds.append(now - began)
            self.first_token_seconds = self.first_token_seconds or now - started
            self.ended_by = self._ending(token_id)
            if self.ended_by is not None:
                return
            self.token_ids.append(token_id)
            yield token_id
            began = time.perf_counter()

    def _room(self) -> int:
        return self.manifest.context_length - len(self.request.prompt_ids)

    def _ending(self, token_id: int) -> FinishReason | None:
        if token_id in self.manifest.tokens.eos_ids:
            return "eos"
        return "stop" if token_id in self.stop_ids else None

    def _reason(self) -> FinishReason:
        if self.stops.stopped:
            return "stop"
        if self.ended_by is not None:
            return self.ended_by
        return "length" if self.request.max_new_tokens <= self._room() else "context"

    def _result(self) -> Result:
        return Result(
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            finish_reason=self._reason(),
            prompt_tokens=len(self.request.prompt_ids),
            seed=self.request.sampling.seed,
            device=self.graph.device,
            provider=self.graph.provider,
            timings=self._timings(),
        )

    def _timings(self) -> Timings:
        prefill, decode = sum(self.step_seconds[:1]), sum(self.step_seconds[1:])
        return Timings(
            prefill_seconds=prefill,
            first_token_seconds=self.first_token_seconds,
            decode_seconds=decode,
            prefill_tokens_per_second=_rate(len(self.request.prompt_ids), prefill),
            decode_tokens_per_second=_rate(len(self.step_seconds) - 1, decode),
        )


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds else 0.0
