"""One user at a time."""

import contextlib
import threading
from collections.abc import Iterator

from wiola_runtime.errors import SessionError


class Exclusive:
    """A session's lock; who finds it taken is told, and does not wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            SessionError: Someone else holds it.
        """
        held = False
        try:
            held = self._lock.acquire(blocking=False)
            if not held:
                raise SessionError(
                    "the session is in use by another thread or a stream that is not finished; "
                    "finish or close the stream, or give each thread a session of its own"
                )
            yield
        finally:
            if held:
                self._lock.release()
