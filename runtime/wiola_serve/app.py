"""The application: the endpoints behind their guard, and what errors look like."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from wiola_runtime import WiolaRuntimeError
from wiola_serve.guard import Access, Guard, refused
from wiola_serve.metrics import Metrics
from wiola_serve.refusal import FAILED, Refusal, refusal_of
from wiola_serve.service import Service
from wiola_serve.wire import FIELDS


def application(service: Service, metrics: Metrics, access: Access) -> ASGIApp:
    """Return the ASGI application."""
    routes = service.routes()
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, metrics=metrics, routes=routes, access=access)],
        exception_handlers={
            WiolaRuntimeError: _refused,
            HTTPException: _unknown,
            Exception: _broken,
        },
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
    assert isinstance(error, WiolaRuntimeError), "it is registered for these"
    return refused(refusal_of(error, FIELDS))


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    known = ", ".join(
        f"{min(one.methods - {'HEAD'})} {one.path_format}" for one in request.app.routes
    )
    found = f"{request.method} {request.url.path}: {error.detail}; expected one of {known}"
    return refused(Refusal(found, status=error.status_code))


async def _broken(_request: Request, _error: Exception) -> Response:
    return refused(Refusal("the server has a bug; see its log", status=FAILED, code="failed"))
