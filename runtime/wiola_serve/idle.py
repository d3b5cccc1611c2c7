"""Connections that nobody uses: they end, so that they do not fill the server."""

import time
from collections.abc import Iterable
from typing import Any

MOST_SECONDS = 30.0


class Idle:
    """Ends connections without a request, or whose answer is not read.

    Args:
        seconds: Time to read an answer, and up to half a minute of it to send a request's head.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[tuple[Any, object], float] = {}

    def end(self, connections: Iterable[Any]) -> None:
        """Look at all of uvicorn's connections; to be called every second."""
        now = time.monotonic()
        idle = [
            (one, one.cycle)  # each request has a cycle of its own
            for one in connections
            if one.cycle is None or one.cycle.response_complete or one.transport.is_closing()
        ]
        self._since = {place: self._since.get(place, now) for place in idle}
        for (one, _), since in self._since.items():
            is_read = one.transport.get_write_buffer_size() == 0
            if now - since >= min(self._seconds, MOST_SECONDS if is_read else self._seconds):
                one.transport.abort()
