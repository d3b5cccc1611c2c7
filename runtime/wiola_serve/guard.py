"""What happens to every request, whatever its route: it is counted, timed and let in or not."""

import asyncio
import contextlib
import dataclasses
import hmac
import ipaddress
import re
import time

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wiola_serve.answers import as_json
from wiola_serve.metrics import Metrics
from wiola_serve.refusal import FAILED, MISDIRECTED, UNAUTHORIZED, Refusal

OPEN_ROUTES = ("/health",)


def is_loopback(host: str) -> bool:
    """Tell whether a name or an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def refused(refusal: Refusal) -> Response:
    """Return the error object of the protocol."""
    return Response(as_json(refusal.body()), refusal.status, refusal.headers, "application/json")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the server.

    Attributes:
        key: What a client must know, if anything.
        is_local: Whether the server listens to this machine alone. A page of the web that its
            browser shows must not reach it either, so it then wants to be called by its own name.
        origins: Pages of the web whose scripts may read answers.
    """

    key: str | None = None
    is_local: bool = True
    origins: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Guard:
    """The middleware.

    Attributes:
        app: What is behind it.
        metrics: Where it counts.
        routes: Are counted by their paths; all other paths are one.
        access: Who is let in.
    """

    app: ASGIApp
    metrics: Metrics
    routes: list[Route]
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        status, began = FAILED, time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal = self._refusal(scope)
        try:
            # A client that neither reads nor writes is cut off when the server has stopped.
            with contextlib.suppress(asyncio.CancelledError):
                await (refused(refusal) if refusal else self.app)(scope, receive, noting)
        finally:
            path = scope["path"]
            known = (one.path_format for one in self.routes if one.path_regex.match(path))
            route = next(known, "other")
            self.metrics.requests.labels(route, status).inc()
            self.metrics.request_seconds.labels(route).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers, key = Headers(scope=scope), self.access.key
        name = re.sub(r":\d*$", "", headers.get("host", "")).strip("[]")
        if self.access.is_local and key is None and not is_loopback(name):
            return Refusal(
                f"this server is called localhost, not {name!r}; with an API key (--api-key) the "
                "name does not matter",
                status=MISDIRECTED,
            )
        if key is None or scope["path"] in OPEN_ROUTES:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("latin-1"), key.encode()
        ):
            return None
        return Refusal(
            "the API key is wrong or missing; send the header Authorization: Bearer KEY",
            status=UNAUTHORIZED, code="invalid_api_key",
        )  # fmt: skip
