"""Optional dependencies: which extra brings which package."""

import contextlib
from collections.abc import Iterator

from wiola_export.errors import MissingExtraError

EXTRAS = {"torch": "trace", "onnxscript": "trace", "distributed": "dask"}


@contextlib.contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Turn a missing optional import into an instruction; let real bugs pass.

    Raises:
        MissingExtraError: A package of an extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtraError(package, EXTRAS[package]) from error
