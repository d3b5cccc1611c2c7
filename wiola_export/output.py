"""Write an output folder all at once: whatever happens, it is the old one or the new one.

The new folder grows beside the target, on the same filesystem, and is renamed at the end.
"""

import contextlib
import errno
import os
import secrets
import shutil
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path

from wiola_export.checkpoint.source_file import read_json_object
from wiola_export.errors import CheckpointError, OutputError
from wiola_export.signals import signals_as_exit
from wiola_runtime import manifest

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def output_folder(
    target: Path, *, force: bool, needed_bytes: int, sources: Collection[Path] = ()
) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` when the block ends without an exception.

    Nothing is left of a block that fails, is interrupted or gets SIGTERM; what was at `target`
    stays as it was.

    Args:
        target: Folder to create; parents are created too.
        force: Replace an earlier bundle at `target`. Other folders are never replaced.
        needed_bytes: Space to have free on the target's filesystem before anything is written.
        sources: Folders that are read; the target may not equal, contain or lie in one.

    Raises:
        OutputError: The target is taken or unusable, or the disk is full.
    """
    target = Path(target).resolve()
    check_target(target, force=force, sources=sources)
    with signals_as_exit(), contextlib.ExitStack() as undo:
        with _disk_errors(target):
            _make_parents(target.parent, undo)
            _check_space(target.parent, needed_bytes)
            partial = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
            undo.callback(_remove, partial)
            partial.mkdir()
        with _full_disk(target):
            yield partial
            _flush(partial)
        with _disk_errors(target):
            _check_vacant(target, force=force)
            _swap(partial, target)
        undo.pop_all()


def check_target(target: Path, *, force: bool, sources: Collection[Path] = ()) -> None:
    """Refuse a target that `output_folder` would refuse, before any work is done.

    Raises:
        OutputError: The target is taken, or is no place for a bundle.
    """
    target = Path(target).resolve()
    with _disk_errors(target):
        _check_place(target, sources)
        _check_vacant(target, force=force)


def _check_place(target: Path, sources: Collection[Path]) -> None:
    if target.exists() and not target.is_dir():
        raise OutputError(f"{target} is a file, expected a folder to write; choose another --out")
    if os.path.ismount(target):
        raise OutputError(
            f"{target} is a mount point, which cannot be replaced in one step; "
            f"choose a folder inside it with --out"
        )
    for source in map(Path.resolve, sources):
        if target == source or source in target.parents or target in source.parents:
            raise OutputError(
                f"the output {target} and the checkpoint {source} lie in one another; "
                f"choose another --out"
            )


def _check_vacant(target: Path, *, force: bool) -> None:
    if not target.exists() or not any(target.iterdir()):
        return
    if not _is_bundle(target):
        raise OutputError(
            f"{target} holds files and is no bundle, so it is never replaced; choose another --out"
        )
    if not force:
        raise OutputError(f"{target} already holds a bundle; replace it with --force")


def _is_bundle(folder: Path) -> bool:
    try:
        return "format_version" in read_json_object(folder / manifest.FILE_NAME)
    except CheckpointError:
        return False


def _check_space(parent: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise OutputError(
            f"{parent} has {free / 1e6:,.0f} MB free, the export needs "
            f"{needed_bytes / 1e6:,.0f} MB; free space or choose another --out"
        )


def _make_parents(parent: Path, undo: contextlib.ExitStack) -> None:
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        undo.callback(_remove_empty, folder)


def _swap(partial: Path, target: Path) -> None:
    """Rename `partial` to `target`; an older bundle stands aside until that has happened."""
    aside = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
    try:
        if target.exists():
            target.rename(aside)
        partial.rename(target)
    finally:
        # An interrupt may fall between any two statements above: look, do not assume.
        if aside.exists() and target.exists():
            _remove(aside)
        elif aside.exists():
            aside.rename(target)
    _sync_folder(target.parent)


def _remove(folder: Path) -> None:
    """Delete a folder of ours; one that cannot be deleted is no reason to fail."""
    if not folder.exists():
        return
    try:
        shutil.rmtree(folder)
    except OSError as error:
        warnings.warn(
            f"{folder} could not be removed ({error.strerror}); delete it by hand",
            RuntimeWarning,
            stacklevel=2,
        )


def _remove_empty(folder: Path) -> None:
    # Somebody may have put something there meanwhile: it is theirs.
    with contextlib.suppress(OSError):
        folder.rmdir()


def _flush(folder: Path) -> None:
    """Bring every file to the disk before the rename makes it visible."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _full_disk(target: Path) -> Iterator[None]:
    """Turn the ways in which a full disk shows itself into one line that says so."""
    try:
        yield
    except OSError as error:
        # numpy's tofile raises without an errno: "1000 requested and 0 written".
        full = error.errno in _FULL or (error.errno is None and str(error).endswith("written"))
        if not full:
            raise
        place = error.filename or target
        free = shutil.disk_usage(target.parent).free
        raise OutputError(
            f"the disk is full while writing {place} ({error.strerror or error}; "
            f"{free / 1e6:,.0f} MB free); free space or choose another --out"
        ) from error


@contextlib.contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Turn what the filesystem refuses outside the caller's block into one line."""
    try:
        with _full_disk(target):
            yield
    except OSError as error:
        raise OutputError(
            f"{target} cannot be written ({error.strerror}: {error.filename}); choose another --out"
        ) from error
