"""Answers sent as they are made: server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wiola_serve.exchange import Exchange

# What a client gets beyond the time limit, to read the error that says so.
LAST_WORDS_SECONDS = 5.0


class EventStream(Response):
    """A response that lets go of its exchange, however it ends.

    Args:
        exchange: The request's.
        lines: What to send.
    """

    media_type = "text/event-stream"

    def __init__(self, exchange: Exchange, lines: AsyncIterator[bytes]) -> None:
        self._exchange = exchange
        self._lines = lines
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send every line; a client that does not read them is left alone in the end."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        end = self._exchange.deadline + LAST_WORDS_SECONDS
        with contextlib.closing(self._exchange), contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await send(start)
                async for line in self._lines:
                    await send({"type": "http.response.body", "body": line, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
