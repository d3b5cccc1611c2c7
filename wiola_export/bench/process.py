"""Run a program to its end in a session of its own, of which nothing is left."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

TAIL_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a program ended, and the end of what it wrote."""

    exit_code: int
    output: str
    errors: str


def run(command: Sequence[str], timeout: float) -> Done:
    """Run a program; however this ends, the program's group of processes has ended too.

    It writes to files: the end of a pipe would wait for whoever else holds it.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It takes longer than so many seconds.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - our own script, or what the user described
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(timeout)
        finally:
            _end(process)
        return Done(exit_code=exit_code, output=_tail(output), errors=_tail(errors))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started."""
    with contextlib.suppress(OSError):  # all of them have ended
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - TAIL_BYTES, 0))
    return file.read().decode(errors="replace")
