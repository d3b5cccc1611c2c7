"""Ctrl-C while modules are imported; itself it imports the standard library alone."""

import contextlib
import signal
import threading
from collections.abc import Iterator

INTERRUPTED = 130  # exit code


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold an interrupt back until the block has ended.

    Modules that are written in C fail in many ways where an interrupt meets their import.

    Raises:
        KeyboardInterrupt: There was one.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it is ignored here, or someone's own
        return
    noted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if noted:
        raise KeyboardInterrupt
