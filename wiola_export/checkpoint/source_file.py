"""Read a file of somebody's checkpoint, or say in one line what is wrong with it."""

import json
from pathlib import Path

from wiola_export.errors import CheckpointError

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_range(path: Path, start: int, size: int) -> bytes:
    """Return up to `size` bytes from byte `start` on.

    Raises:
        CheckpointError: The file cannot be opened or read.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); check that it exists and is readable"
        ) from error


def check_content(path: Path) -> int:
    """Return the size in bytes of a file that has a content of its own.

    Raises:
        CheckpointError: The file is absent, empty, or a Git LFS pointer to the real one.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path} not found; a checkpoint folder needs it, download or copy it there"
        )
    if read_range(path, 0, len(LFS_POINTER)) == LFS_POINTER:
        raise CheckpointError(
            f"{path} is a Git LFS pointer, expected the file itself; "
            f"run `git lfs pull` in {path.parent}"
        )
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        raise CheckpointError(f"{path} is empty (0 bytes); download or copy it again")
    return size_bytes


def read_json_object(path: Path) -> dict[str, object]:
    """Load a JSON file whose top level is an object.

    Raises:
        CheckpointError: The file is absent, empty, an LFS pointer, malformed, or no object.
    """
    size_bytes = check_content(path)
    return parse_json_object(read_range(path, 0, size_bytes), path)


def parse_json_object(text: bytes, path: Path) -> dict[str, object]:
    """Parse JSON whose top level is an object and in which no key comes twice.

    Raises:
        CheckpointError: The text is malformed (named by line of `path`), or no object.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path}:{error.lineno}: not valid JSON ({error.msg}); correct or download it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: not valid JSON ({error}); correct or download it again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a JSON {type(value).__name__}, expected an object; "
            f"correct or download it again"
        )
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build an object; readers disagree on which of two equal keys counts, so refuse both."""
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} comes twice")
    return result
