"""A conversation in a file: text and state, tied to its bundle.

The file is numpy's `.npz`, without pickles: `header` (JSON), `token_ids`, `fed_ids` (those that the
state holds), and `state_0` … in the order of the manifest's states.
"""

import contextlib
import dataclasses
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from wiola_runtime.config import is_count
from wiola_runtime.errors import SessionError, path_of
from wiola_runtime.manifest import Manifest
from wiola_runtime.state import DTYPES, shape_of

FORMAT_VERSION = 1
HEADER_BYTES = 1 << 20  # some 100,000 turns
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


def write(path: str | Path, content: Saved) -> None:
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
    write_whole(
        path_of(path, "path", "a file", SessionError), lambda file: np.savez(file, **arrays)
    )


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


def read(path: str | Path, manifest: Manifest) -> Saved:
    """Read a file and check that it is of this bundle.

    Raises:
        SessionError: It is absent, no saved session, damaged, or of another bundle.
    """
    path = path_of(path, "path", "a file", SessionError)
    try:
        if path.exists() and not (path.is_file() and zipfile.is_zipfile(path)):
            raise SessionError(f"{path} is no saved session; `Session.save` writes such a file")
        with zipfile.ZipFile(path) as file:
            header = json.loads(_array(file, "header", HEADER_BYTES).tobytes())
            _check_origin(path, header["format_version"], header["bundle"], manifest)
            ids = (manifest.context_length,), np.dtype(np.int64)
            known = _state(manifest, manifest.context_length) | {"token_ids": ids, "fed_ids": ids}
            names = {name.removesuffix(".npy") for name in file.namelist()} - {"header"}
            most = {name: math.prod(known[name][0]) * known[name][1].itemsize for name in names}
            arrays = {name: _array(file, name, most[name]) for name in known if name in names}
        token_ids, fed_ids = arrays.pop("token_ids"), arrays.pop("fed_ids")
    except FileNotFoundError as error:
        raise SessionError(f"{path} not found; `Session.save` writes such a file") from error
    except DAMAGES as error:
        raise SessionError(f"{path} is no saved session, or damaged ({error})") from error
    if not _fits(header, token_ids, fed_ids, arrays, manifest):
        raise SessionError(f"{path} is damaged: text and state do not fit each other")
    return Saved(
        bundle=manifest.fingerprint,
        overflow=header["overflow"],
        token_ids=tuple(token_ids.tolist()),
        turns=tuple(header["turns"]),
        fed_ids=tuple(fed_ids.tolist()),
        arrays=tuple(arrays.values()),
    )


def _check_origin(path: Path, version: object, bundle: object, manifest: Manifest) -> None:
    if version != FORMAT_VERSION:
        raise SessionError(f"{path} has format {version}; this runtime reads {FORMAT_VERSION}")
    if bundle != manifest.fingerprint:
        raise SessionError(
            f"{path} belongs to another bundle ({str(bundle)[:12]}…), not to {manifest.name} "
            f"({manifest.fingerprint[:12]}…); restore it there"
        )


def _state(manifest: Manifest, tokens: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and type of each array that a state of so many tokens has."""
    sizes = {"B": 1, "C": tokens, "P": tokens}
    return {
        f"state_{index}": (shape_of(spec.axes, sizes), np.dtype(DTYPES[spec.dtype]))
        for index, spec in enumerate(manifest.states)
    }


def _array(file: zipfile.ZipFile, name: str, most: int) -> NDArray[Any]:
    """Read an array of so many bytes at most, whatever the file claims that it has.

    Compressed ones, which may take any memory to read, are never written.
    """
    info = file.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    with file.open(info) as entry:
        if npy.read_magic(entry) != (1, 0):
            raise ValueError(f"{name} is of another version")
        shape, by_columns, dtype = npy.read_array_header_1_0(entry)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or not 0 <= size <= most:
            raise ValueError(f"{name} has {size} bytes; expected {most} at most")
        return np.ndarray(shape, dtype, entry.read(size), order="F" if by_columns else "C")


def _fits(
    header: dict[str, Any],
    token_ids: NDArray[Any],
    fed_ids: NDArray[Any],
    states: dict[str, NDArray[Any]],
    manifest: Manifest,
) -> bool:
    """Tell whether what a file holds could have been written by a session of the bundle."""
    turns, size = header.get("turns"), int(fed_ids.size)
    if header.get("overflow") not in ("error", "truncate") or not isinstance(turns, list):
        return False
    known = all(_are_ids(ids, manifest) for ids in (token_ids, fed_ids))
    if not known or not all(is_count(at, 0) and at <= token_ids.size for at in turns):
        return False
    # The types also say that numbers are in this machine's byte order.
    found = {name: (array.shape, array.dtype) for name, array in states.items()}
    whole = found == _state(manifest, size) or (size == 0 and not found)
    return whole and turns == sorted(turns)


def _are_ids(ids: NDArray[Any], manifest: Manifest) -> bool:
    if ids.ndim != 1 or ids.dtype != np.int64 or ids.size > manifest.context_length:
        return False
    return ids.size == 0 or 0 <= int(ids.min()) <= int(ids.max()) < manifest.vocab_size
