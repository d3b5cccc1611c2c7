"""A conversation in a file: text and state, tied to its bundle.

The file is numpy's `.npz`, without pickles: `header` (JSON), `token_ids`, `fed_ids` (those that the
state holds), and `state_0` … in the order of the manifest's states.
"""

import contextlib
import dataclasses
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.config import is_count
from wiola_runtime.errors import SessionError
from wiola_runtime.manifest import Manifest
from wiola_runtime.state import DTYPES, shape_of

FORMAT_VERSION = 1
# What numpy, zipfile and json raise at a file that is not what it should be.
DAMAGES = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, NotImplementedError, OSError),
    *(RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a file holds.

    Attributes:
        bundle: Fingerprint of the bundle.
        overflow: What the session does where its text is too long.
        token_ids: The text.
        turns: Where each turn begins.
        fed_ids: What the state holds.
        arrays: The state, in the order of the manifest's; empty where nothing was fed.
    """

    bundle: str
    overflow: Literal["error", "truncate"]
    token_ids: tuple[int, ...]
    turns: tuple[int, ...]
    fed_ids: tuple[int, ...]
    arrays: tuple[NDArray[Any], ...]


def write(path: Path, content: Saved) -> None:
    """Write a file, whole or not at all.

    Raises:
        SessionError: It cannot be written.
    """
    header = {
        "format_version": FORMAT_VERSION,
        "bundle": content.bundle,
        "overflow": content.overflow,
        "turns": content.turns,
    }
    arrays: dict[str, Any] = {f"state_{i}": array for i, array in enumerate(content.arrays)}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    arrays["token_ids"] = np.asarray(content.token_ids, np.int64)
    arrays["fed_ids"] = np.asarray(content.fed_ids, np.int64)
    write_whole(path, lambda file: np.savez(file, **arrays))


def write_whole(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file with `fill`, whole or not at all; a link stays one.

    Raises:
        SessionError: It cannot be written; what was there is as it was.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise SessionError(f"{path} is no file; save under another name")
        partial = target.with_name(f".{target.name}.partial")
        try:
            with partial.open("wb") as file:
                fill(file)
            partial.replace(target)
        finally:
            with contextlib.suppress(OSError):  # the first one is told
                partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # no room, no such folder, or no name at all
        raise SessionError(f"{path} cannot be written ({error}); save elsewhere") from error


def read(path: Path, manifest: Manifest) -> Saved:
    """Read a file and check that it is of this bundle.

    Raises:
        SessionError: It is absent, no saved session, damaged, or of another bundle.
    """
    try:
        if path.exists() and not zipfile.is_zipfile(path):  # numpy would speak of pickles
            raise SessionError(f"{path} is no saved session; `Session.save` writes such a file")
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("header").tobytes())
        token_ids, fed_ids = arrays.pop("token_ids"), arrays.pop("fed_ids")
        version, bundle = header["format_version"], header["bundle"]
    except FileNotFoundError as error:
        raise SessionError(f"{path} not found; `Session.save` writes such a file") from error
    except DAMAGES as error:
        raise SessionError(f"{path} is no saved session, or damaged ({error})") from error
    if version != FORMAT_VERSION:
        raise SessionError(f"{path} has format {version}; this runtime reads {FORMAT_VERSION}")
    if bundle != manifest.fingerprint:
        raise SessionError(
            f"{path} belongs to another bundle ({str(bundle)[:12]}…), not to {manifest.name} "
            f"({manifest.fingerprint[:12]}…); restore it there"
        )
    names = [f"state_{index}" for index in range(len(manifest.states))]
    states = tuple(arrays.pop(name) for name in names if name in arrays)
    if arrays or not _fits(header, token_ids, fed_ids, states, manifest):
        raise SessionError(f"{path} is damaged: text and state do not fit each other")
    return Saved(
        bundle=bundle,
        overflow=header["overflow"],
        token_ids=tuple(token_ids.tolist()),
        turns=tuple(header["turns"]),
        fed_ids=tuple(fed_ids.tolist()),
        arrays=states,
    )


def _fits(
    header: dict[str, Any],
    token_ids: NDArray[Any],
    fed_ids: NDArray[Any],
    states: tuple[NDArray[Any], ...],
    manifest: Manifest,
) -> bool:
    """Tell whether what a file holds could have been written by a session of the bundle."""
    turns, size = header.get("turns"), int(fed_ids.size)
    if header.get("overflow") not in ("error", "truncate") or not isinstance(turns, list):
        return False
    known = all(_are_ids(ids, manifest) for ids in (token_ids, fed_ids))
    if not known or not all(is_count(at, 0) and at <= token_ids.size for at in turns):
        return False
    sizes = {"B": 1, "C": size, "P": size}
    wanted = [(shape_of(spec.axes, sizes), DTYPES[spec.dtype]) for spec in manifest.states]
    found = [(array.shape, array.dtype.type) for array in states]
    return found == wanted or (size == 0 and not found)


def _are_ids(ids: NDArray[Any], manifest: Manifest) -> bool:
    if ids.ndim != 1 or ids.dtype != np.int64 or ids.size > manifest.context_length:
        return False
    return ids.size == 0 or 0 <= int(ids.min()) <= int(ids.max()) < manifest.vocab_size
