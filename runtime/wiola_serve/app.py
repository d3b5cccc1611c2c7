"""The application: the routes, who may use them, and what errors look like."""

import dataclasses

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

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


def application(service: Service, metrics: Metrics, access: Access) -> ASGIApp:
    """Return the ASGI application."""
    routes = service.routes()
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                Guard, metrics=metrics, routes=routes, key=access.key, is_local=access.is_local
            )
        ],
        exception_handlers={Refusal: _refused, HTTPException: _unknown, Exception: _broken},
    )
    app.router.redirect_slashes = False
    if not access.origins:
        return app
    return CORSMiddleware(  # outside of all, so that scripts can read what bugs are answered with
        app,
        allow_origins=access.origins,
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"),
    )


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal), "it is registered for these"
    return refused(error)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    known = ", ".join(
        f"{min(one.methods - {'HEAD'})} {one.path_format}" for one in request.app.routes
    )
    found = f"{request.method} {request.url.path}: {error.detail}; expected one of {known}"
    return refused(Refusal(found, status=error.status_code))


async def _broken(_request: Request, _error: Exception) -> Response:
    return refused(Refusal("the server has a bug; see its log", status=FAILED, code="failed"))
