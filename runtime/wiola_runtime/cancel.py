"""Stop a reply from outside."""

import threading


class Cancelled(Exception):  # noqa: N818  no error: someone wanted it
    """Raised in a callback of a reply, it ends the reply; what is there is returned."""


class Cancellation:
    """A switch that any thread may turn; a reply looks at it before each token and each chunk."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether someone has cancelled."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Let every reply that watches this end; a second call does nothing."""
        self._event.set()

    def check(self) -> None:
        """Raise if someone has cancelled.

        Raises:
            Cancelled: Someone has.
        """
        if self.is_cancelled:
            raise Cancelled
