"""The application: the routes, who may use them, and what errors look like."""

import dataclasses

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from wiola_serve.guard import Guard, refused
from wiola_serve.metrics import Metrics
from wiola_serve.refusal import FAILED, Refusal
from wiola_serve.service import Service


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the server.

    Attributes:
        key: What a client must know, if anything.
        is_local: Whether the server listens to this machine alone.
        origins: Pages of the web whose scripts may read answers.
    """

    key: str | None = None
    is_local: bool = True
    origins: tuple[str, ...] = ()


def application(service: Service, metrics: Metrics, access: Access) -> Starlette:
    """Return the ASGI application."""
    routes = service.routes()
    guard = Middleware(
        Guard,
        metrics=metrics,
        routes={route.path for route in routes},
        key=access.key,
        is_local=access.is_local,
    )
    cors = Middleware(
        CORSMiddleware,
        allow_origins=access.origins,
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"),
    )
    return Starlette(
        routes=routes,
        middleware=[cors, guard] if access.origins else [guard],
        exception_handlers={Refusal: _refused, HTTPException: _unknown, Exception: _broken},
    )


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal), "it is registered for these"
    return refused(error)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    path = f"{request.method} {request.url.path}"
    return refused(Refusal(f"{path}: {error.detail}; see docs/server.md", status=error.status_code))


async def _broken(_request: Request, _error: Exception) -> Response:
    return refused(Refusal("the server has a bug; see its log", status=FAILED, code="failed"))
