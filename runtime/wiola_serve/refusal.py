"""Everything the server refuses, with the status and the error object of the protocol."""

import re
from collections.abc import Mapping
from typing import Any

from wiola_runtime import CapacityError, WiolaRuntimeError

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND = 400, 401, 404
REQUEST_TIMEOUT, TOO_LARGE, NO_JSON, MISDIRECTED, UNPROCESSABLE = 408, 413, 415, 421, 422
TOO_MANY, CLIENT_LEFT, FAILED, UNAVAILABLE, TOO_SLOW = 429, 499, 500, 503, 504
HEADERS: Mapping[int, Mapping[str, str]] = {
    TOO_MANY: {"Retry-After": "1"},
    UNPROCESSABLE: {"x-should-retry": "false"},
    TOO_SLOW: {"x-should-retry": "false"},
    # The rest of the body is of no use.
    REQUEST_TIMEOUT: {"Connection": "close"},
    TOO_LARGE: {"Connection": "close"},
}
MOST_LETTERS = 800
OURS = 500  # from here on the fault is the server's


def shortened(text: str) -> str:
    """Leave out of a message most of what is long in it: numbers, words, and all together."""
    text = re.sub(r"\w{80,}", lambda found: f"{found[0][:40]}...", text)
    return text if len(text) <= MOST_LETTERS else f"{text[:500]} ... {text[-200:]}"


class Refusal(WiolaRuntimeError):  # noqa: N818  the answer to a request, no accident
    """A request that gets an error instead of an answer.

    Args:
        message: What was found, what was expected, and the way out.
        status: Of HTTP.
        code: The protocol's short name of the failure.
        param: The field of the request that is to blame.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = BAD_REQUEST,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(shortened(message))
        self.status = status
        self.code = code
        self.param = None if param is None else shortened(param)

    @property
    def headers(self) -> Mapping[str, str]:
        """What a client should know before another try; OpenAI's own client reads it."""
        return HEADERS.get(self.status, {})

    def body(self) -> dict[str, Any]:
        """Return the error object of the protocol."""
        kind = "server_error" if self.status >= OURS else "invalid_request_error"
        if self.status == TOO_MANY:
            kind = "rate_limit_error"
        told = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def refusal_of(error: WiolaRuntimeError, names: Mapping[str, str]) -> Refusal:
    """Return what the client is told where the runtime refuses.

    Args:
        error: Its message begins with the name of a field, where it is about one.
        names: Of these fields, what the protocol calls them.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, CapacityError):
        return Refusal(str(error), code="context_length_exceeded")
    field, _, found = str(error).partition(" ")
    name = names.get(field)
    return Refusal(f"{name or field} {found}", param=name)
