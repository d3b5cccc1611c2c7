"""A conversation in a file: text and state, tied to its bundle.

The file is numpy's `.npz`, without pickles: `header` (JSON), `token_ids`, `fed_ids` (those that the
state holds), and `state_0` … in the order of the manifest's states.
"""

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.errors import SessionError
from wiola_runtime.manifest import Manifest

FORMAT_VERSION = 1
# What numpy, zipfile and json raise at a file that is not what it should be.
DAMAGES = (AttributeError, EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile)


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
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SessionError(f"{path} cannot be written ({error}); save elsewhere") from error


def read(path: Path, manifest: Manifest) -> Saved:
    """Read a file and check that it is of this bundle.

    Raises:
        SessionError: It is absent, no saved session, damaged, or of another bundle.
    """
    try:
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
            f"{path} belongs to another bundle ({bundle[:12]}…), not to {manifest.name} "
            f"({manifest.fingerprint[:12]}…); restore it there"
        )
    names = [f"state_{index}" for index in range(len(manifest.states))]
    found = tuple(arrays[name] for name in names if name in arrays)
    if len(found) not in (0, len(names)) or len(found) != len(arrays):
        raise SessionError(f"{path} is damaged: it holds {len(found)} of {len(names)} states")
    return Saved(
        bundle=bundle,
        overflow=header["overflow"],
        token_ids=tuple(token_ids.tolist()),
        turns=tuple(header["turns"]),
        fed_ids=tuple(fed_ids.tolist()),
        arrays=found,
    )
