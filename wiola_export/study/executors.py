"""Where cells are done: processes of this machine, or a Dask cluster that runs already."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

from wiola_export.errors import OptionError
from wiola_export.extras import explain_missing_extra
from wiola_runtime.devices import default_threads

THREADS = "OMP_NUM_THREADS"
CONNECT_SECONDS = 10
UNWINDING_SECONDS = 3.0  # to delete the files of a cell that was interrupted


@contextlib.contextmanager
def local_processes(workers: int) -> Iterator[Executor]:
    """Yield so many processes that share this machine's cores; each starts with its first task.

    They are spawned: a forked one would have the threads' locks, but not the threads.
    """
    context = multiprocessing.get_context("spawn")
    with (
        _threads_of_a_process(max(1, default_threads() // workers)),
        ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_when_told) as pool,
    ):
        yield pool


@contextlib.contextmanager
def dask_cluster(address: str) -> Iterator[Executor]:
    """Yield the workers of a scheduler; they must see the same files and have wiola-export.

    Raises:
        MissingExtraError: Dask is not installed.
        OptionError: No scheduler answers there.
    """
    with explain_missing_extra():
        from distributed import Client  # noqa: PLC0415  an optional dependency
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"--scheduler {address} does not answer ({type(error).__name__}); expected an address "
            "such as tcp://HOST:8786, where `dask scheduler` runs"
        ) from error
    # Not pure: a cell that failed is tried anew, whatever the cluster remembers.
    with client, client.get_executor(pure=False) as executor:
        yield executor


@contextlib.contextmanager
def _threads_of_a_process(count: int) -> Iterator[None]:
    """Tell torch and numpy of new processes how many threads to start; a user's word is kept."""
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = str(count)
    try:
        yield
    finally:
        del os.environ[THREADS]


def _leave_when_told() -> None:
    """Let an interrupt, or the end of the process that started this one, unwind a cell."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave(number: int, _frame: object) -> None:
    """Unwind what is being done, then leave: the pool would go on with the next task."""
    ending = threading.Timer(UNWINDING_SECONDS, os._exit, (128 + number,))
    ending.daemon = True
    ending.start()
    raise SystemExit(128 + number)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    signal.raise_signal(signal.SIGTERM)
