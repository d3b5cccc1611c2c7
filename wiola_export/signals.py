"""Signals that end a program, told to it as exceptions: what it has begun can then be undone."""

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def signals_as_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, as an interrupt does; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
