"""What the command reads and writes, whatever state it is in."""

import contextlib
import io
import os
import sys
from typing import TextIO


def accept_any_text() -> None:
    """Let stdin and stdout go on where a character is not valid, or cannot be shown."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        # The runtime refuses what is not valid, and the next line is read.
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def abandon(stream: TextIO) -> None:
    """Let what a stream still buffers go nowhere: it must not fail again when Python exits."""
    with contextlib.suppress(OSError):  # what stands for it in a notebook has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str) -> None:
    """Write a line to stderr; where that is closed, nowhere: `print` would choose stdout."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)
