"""The endpoints: from a request of the protocol to jobs, and from their news to an answer."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wiola_runtime import GenerationConfig, Model, Result
from wiola_runtime.reply import Reply
from wiola_serve import answers, wire
from wiola_serve.exchange import Exchange
from wiola_serve.job import Job, News
from wiola_serve.limits import Limits
from wiola_serve.metrics import Metrics
from wiola_serve.preparing import Preparations
from wiola_serve.refusal import CLIENT_LEFT, NO_JSON, UNAVAILABLE, Refusal
from wiola_serve.scheduler import Scheduler
from wiola_serve.stream import EventStream

Placed = tuple[int, News]
TEXT_OF_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Service:
    """The endpoints of one opened bundle."""

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        preparations: Preparations,
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self._engine = model.engine
        self._texts = answers.TokenTexts(model.tokenizer)
        self._name = model.manifest.name
        self._fingerprint = f"fp_{model.manifest.fingerprint[:16]}"
        self._scheduler = scheduler
        self._preparations = preparations
        self._limits = limits
        self._metrics = metrics
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        """Return every route."""
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]

    async def completions(self, request: Request) -> Response:
        """Continue texts."""

        def replies(body: wire.Body) -> tuple[wire.Options, list[Reply]]:
            asked = wire.read_completion(body, self._name)
            count, most = len(asked.prompts), self._limits.queue
            if count > most:
                found = f"prompt has {count} texts; expected at most {most} in a request"
                raise Refusal(found, param="prompt")
            texts = [self._engine.ids_of(prompt, begins=True) for prompt in asked.prompts]
            return asked.options, self._replies(texts, asked.options)

        form = answers.CompletionForm(self._texts)
        return await self._answer(request, replies, form, keeps=False)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""

        def replies(body: wire.Body) -> tuple[wire.Options, list[Reply]]:
            asked = wire.read_chat(body, self._name)
            ids = self._engine.chat.ids(asked.messages)
            return asked.options, self._replies([ids], asked.options)

        form = answers.ChatForm(self._texts)
        return await self._answer(request, replies, form, keeps=True)

    async def models(self, _request: Request) -> Response:
        """List the one model."""
        return in_json({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """Describe the model."""
        wire.require_model(request.path_params["name"], self._name)
        return in_json(self._card())

    async def health(self, _request: Request) -> Response:
        """Say whether prompts are taken, and how busy the server is."""
        scheduler, manifest = self._scheduler, self._engine.manifest
        content = {
            "status": scheduler.status,
            "model": self._name,
            "weights": manifest.weights,
            "device": self._engine.graph.device,
            "decoding": "together" if scheduler.batches else "one row at a time",
            "active_rows": scheduler.active_rows,
            "most_rows": self._limits.rows,
            "queue_length": scheduler.queue_length,
            "most_queued": self._limits.queue,
        }
        return in_json(content, 200 if scheduler.status == "ok" else UNAVAILABLE)

    async def metrics(self, _request: Request) -> Response:
        """Show the metrics."""
        return Response(self._metrics.page(), headers={"Content-Type": TEXT_OF_PROMETHEUS})

    async def _answer(
        self,
        request: Request,
        replies: Callable[[wire.Body], tuple[wire.Options, list[Reply]]],
        form: answers.CompletionForm | answers.ChatForm,
        *,
        keeps: bool,
    ) -> Response:
        """Answer a request, whole or as a stream that begins with the first text."""
        exchange = Exchange(request, self._scheduler, self._limits)
        with contextlib.ExitStack() as stack:
            stack.callback(exchange.close)
            require_json(request)
            body = wire.read_body(await exchange.body())
            client = request.client.host if request.client else ""
            preparing = self._preparations.run(client, lambda: replies(body))
            options, begun = await exchange.wait_for(preparing)
            keeps = keeps and self._limits.conversations > 0
            jobs = [
                Job(client, reply, exchange.listener(i), streams=options.streams, keeps=keeps)
                for i, reply in enumerate(begun)
            ]
            exchange.submit(jobs)
            news = exchange.news()
            envelope = answers.Envelope(form, self._name, self._fingerprint)
            if not options.streams:
                ends = dict([placed async for placed in news])
                # Long answers with log probabilities take their time, and others wait for the loop.
                in_order = [ends[i] for i in sorted(ends)]
                return await asyncio.to_thread(lambda: in_json(envelope.whole(in_order)))
            first = await anext(news)
            stack.pop_all()  # the stream closes the exchange
            lines = _events(first, news, envelope, tells_usage=options.tells_usage)
            return EventStream(exchange, lines)

    def _replies(self, texts: Sequence[list[int]], options: wire.Options) -> list[Reply]:
        for ids in texts:
            self._engine.require_room(len(ids))
        config = self._config(options)
        return [Reply(self._engine, ids, config) for ids in texts]

    def _config(self, options: wire.Options) -> GenerationConfig:
        config = self._engine.config(None, options.changes)
        most = self._limits.tokens
        if most is None or config.max_new_tokens <= most:
            return config
        if "max_new_tokens" in options.changes:
            raise Refusal(
                f"max_tokens is {config.max_new_tokens}; expected at most {most}, the limit of "
                "this server (--max-tokens)",
                param="max_tokens",
            )
        return dataclasses.replace(config, max_new_tokens=most)

    def _card(self) -> Mapping[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "wiola",
            "context_length": self._engine.manifest.context_length,
        }


def in_json(content: Mapping[str, Any], status: int = 200) -> Response:
    """Return JSON."""
    return Response(answers.as_json(content), status, media_type="application/json")


def require_json(request: Request) -> None:
    """Check that the body is said to be JSON, which no form of a foreign page can say.

    Raises:
        Refusal: It is said to be something else.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(
            f"the body is said to be {kind or 'nothing'}; send Content-Type: application/json",
            status=NO_JSON,
        )


async def _events(
    first: Placed, news: AsyncIterator[Placed], envelope: answers.Envelope, *, tells_usage: bool
) -> AsyncIterator[bytes]:
    """Yield the events of a stream; a failure is the last one, and then it is not [DONE]."""
    results: list[Result] = []
    extra = {"usage": None} if tells_usage else {}
    placed: Placed | None = first
    try:
        while placed is not None:
            yield answers.event(envelope.piece(*placed) | extra)
            if placed[1].result is not None:
                results.append(placed[1].result)
            placed = await anext(news, None)
    except Refusal as refusal:
        if refusal.status != CLIENT_LEFT:
            yield answers.event(refusal.body())
        return
    if tells_usage:
        yield answers.event(envelope.last(results))
    yield answers.LAST_LINE
