"""A folder for what is needed for a while."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch_folder(prefix: str, warn: Callable[[str], None]) -> Iterator[Path]:
    """Yield an empty folder, and remove it; what cannot be removed is a warning.

    A file may still be mapped, or a scanner hold it. `tempfile.TemporaryDirectory` of Python 3.11
    ends in a RecursionError where a folder cannot be removed, even told to ignore errors.

    Args:
        prefix: What the folder's name begins with.
        warn: Is told what was left behind.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            warn(f"{folder} could not be removed; delete it by hand")
