"""The output folder is the old one or the new one, whatever happens in between."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from wiola_export import output
from wiola_export.errors import ExportError, OutputError
from wiola_export.output import output_folder

FULL_DISK = Path("/dev/full")
MANIFEST = '{"format_version": 1}'


@pytest.fixture
def target(tmp_path):
    return tmp_path / "bundle"


def write_bundle(folder, content):
    (folder / "manifest.json").write_text(MANIFEST, "utf-8")
    (folder / "model.onnx").write_text(content, "utf-8")


def old_bundle(folder):
    folder.mkdir()
    write_bundle(folder, "old")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(message, target, *, force=False, needed_bytes=0, sources=()):
    before = sorted(target.parent.rglob("*")) if target.parent.is_dir() else []
    with pytest.raises(OutputError) as caught:
        with output_folder(target, force=force, needed_bytes=needed_bytes, sources=sources):
            pytest.fail("nothing may be written")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (sorted(target.parent.rglob("*")) if target.parent.is_dir() else []) == before


def test_the_target_appears_when_the_block_ends(target):
    with output_folder(target, force=False, needed_bytes=0) as partial:
        assert partial.parent == target.parent
        assert partial.name.startswith(".bundle.partial-")
        write_bundle(partial, "new")
        assert not target.exists()

    assert names(target.parent) == ["bundle"]
    assert (target / "model.onnx").read_text("utf-8") == "new"


def test_the_folder_has_the_rights_of_any_new_folder(target):
    plain = target.parent / "plain"
    plain.mkdir()

    with output_folder(target, force=False, needed_bytes=0) as partial:
        (partial / "sub").mkdir()

    assert target.stat().st_mode == plain.stat().st_mode


def test_parents_are_made_and_an_empty_target_is_used(tmp_path):
    for target in (tmp_path / "a" / "b" / "bundle", tmp_path / "empty"):
        if target.name == "empty":
            target.mkdir()
        with output_folder(target, force=False, needed_bytes=0) as partial:
            write_bundle(partial, "new")
        assert names(target) == ["manifest.json", "model.onnx"]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with output_folder(tmp_path / "link", force=False, needed_bytes=0) as partial:
        write_bundle(partial, "new")

    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["manifest.json", "model.onnx"]


@pytest.mark.parametrize("failure", [ExportError("x"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_leaves_what_was_there(tmp_path, failure, exists):
    target = tmp_path / "made" / "bundle"
    if exists:
        target.parent.mkdir()
        old_bundle(target)

    with pytest.raises(type(failure)):
        with output_folder(target, force=True, needed_bytes=0) as partial:
            write_bundle(partial, "new")
            raise failure

    assert names(tmp_path) == (["made"] if exists else [])
    if exists:
        assert names(target.parent) == ["bundle"]
        assert (target / "model.onnx").read_text("utf-8") == "old"


def test_a_parent_that_somebody_else_uses_meanwhile_stays(tmp_path):
    with pytest.raises(ExportError):
        with output_folder(tmp_path / "made" / "b", force=False, needed_bytes=0):
            (tmp_path / "made" / "theirs").touch()
            raise ExportError

    assert names(tmp_path / "made") == ["theirs"]


def test_an_existing_bundle_needs_force(target):
    old_bundle(target)

    refused(f"{target} already holds a bundle; replace it with --force", target)


def test_force_replaces_a_bundle_and_nothing_of_it_is_left(target):
    old_bundle(target)
    (target / "stale").touch()

    with output_folder(target, force=True, needed_bytes=0) as partial:
        write_bundle(partial, "new")

    assert names(target.parent) == ["bundle"]
    assert names(target) == ["manifest.json", "model.onnx"]
    assert (target / "model.onnx").read_text("utf-8") == "new"


@pytest.mark.parametrize("manifest", [None, "{}", "[]", "{", '{"name": "a web page"}'])
@pytest.mark.parametrize("force", [True, False])
def test_a_folder_that_is_no_bundle_is_never_replaced(target, manifest, force):
    target.mkdir()
    (target / "thesis.txt").touch()
    if manifest is not None:
        (target / "manifest.json").write_text(manifest, "utf-8")

    refused(f"{target} holds files and is no bundle, so it is never", target, force=force)
    assert (target / "thesis.txt").exists()


def test_a_target_that_fills_up_meanwhile_is_left_alone(target):
    with pytest.raises(OutputError, match="holds files and is no bundle"):
        with output_folder(target, force=True, needed_bytes=0) as partial:
            write_bundle(partial, "new")
            target.mkdir()
            (target / "theirs").touch()

    assert names(target.parent) == ["bundle"]
    assert names(target) == ["theirs"]


def test_a_file_is_no_target(target):
    target.write_text("x", "utf-8")

    refused(f"{target} is a file, expected a folder to write; choose another", target, force=True)


def test_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()

    refused(
        f"{tmp_path}/file/bundle cannot be written (Not a directory: ",
        tmp_path / "file" / "bundle",
    )


@pytest.mark.parametrize("place", [".", "inside", ".."])
def test_the_checkpoint_is_never_written_to(tmp_path, place):
    source = tmp_path / "models" / "checkpoint"
    source.mkdir(parents=True)

    refused("lie in one another; choose another --out", source / place, sources=[source])


def test_a_neighbour_of_the_checkpoint_is_fine(tmp_path):
    (tmp_path / "model").mkdir()

    with output_folder(
        tmp_path / "model-int8", force=False, needed_bytes=0, sources=[tmp_path / "model"]
    ):
        pass

    assert names(tmp_path) == ["model", "model-int8"]


def test_a_mount_point_is_refused_before_the_work(target, monkeypatch):
    target.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == target)

    refused(f"{target} is a mount point, which cannot be replaced in one step", target)


def test_too_little_space_is_said_before_the_work(tmp_path):
    target = tmp_path / "made" / "bundle"

    with pytest.raises(OutputError) as caught:
        with output_folder(target, force=False, needed_bytes=10**18):
            pytest.fail("nothing may be written")

    assert re.fullmatch(
        rf"{target.parent} has [\d,]+ MB free, the export needs 1,000,000,000,000 MB; "
        rf"free space or choose another --out",
        str(caught.value),
    )
    assert names(tmp_path) == []


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("writer", ["write", "tofile"])
def test_a_disk_that_fills_up_is_named(target, writer):
    old_bundle(target)
    with pytest.raises(OutputError, match="the disk is full while writing") as caught:
        with output_folder(target, force=True, needed_bytes=0) as partial:
            write_bundle(partial, "new")
            with FULL_DISK.open("wb", buffering=0) as file:
                if writer == "write":
                    file.write(b"weights")
                else:
                    np.zeros(2**20).tofile(file)

    assert "MB free); free space or choose another --out" in str(caught.value)
    assert names(target.parent) == ["bundle"]
    assert (target / "model.onnx").read_text("utf-8") == "old"


def test_another_error_of_the_block_stays_what_it_is(target):
    with pytest.raises(FileNotFoundError):
        with output_folder(target, force=False, needed_bytes=0) as partial:
            (partial / "none").read_bytes()

    assert names(target.parent) == []


def test_a_parent_that_cannot_be_written(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write to read-only folders")

    refused(f"{closed}/bundle cannot be written (Permission denied: ", closed / "bundle")


def test_a_refusal_of_the_filesystem_becomes_one_line(target, monkeypatch):
    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)

    refused(f"{target} cannot be written (Read-only file system: ", target)


@pytest.mark.parametrize("step", [1, 2])
def test_a_failed_rename_puts_the_old_bundle_back(target, monkeypatch, step):
    old_bundle(target)
    rename = type(target).rename
    calls = []

    def fail_at_step(path, new):
        calls.append(path)
        if len(calls) == step:
            raise OSError(errno.EACCES, "Permission denied", str(path))
        return rename(path, new)

    with pytest.raises(OutputError, match="cannot be written"):
        with output_folder(target, force=True, needed_bytes=0) as partial:
            write_bundle(partial, "new")
            monkeypatch.setattr("pathlib.Path.rename", fail_at_step)

    assert names(target.parent) == ["bundle"]
    assert (target / "model.onnx").read_text("utf-8") == "old"


def test_an_old_bundle_that_cannot_be_removed_is_a_warning(target, monkeypatch):
    old_bundle(target)

    def refuse(path):
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr(output.shutil, "rmtree", refuse)
    with pytest.warns(RuntimeWarning, match=r"could not be removed \(Device or resource busy\)"):
        with output_folder(target, force=True, needed_bytes=0) as partial:
            write_bundle(partial, "new")

    assert (target / "model.onnx").read_text("utf-8") == "new"


def test_every_file_reaches_the_disk_before_the_rename(target, monkeypatch):
    synced = []
    fsync = os.fsync

    def record(descriptor):
        synced.append((os.fstat(descriptor).st_ino, target.exists()))
        fsync(descriptor)

    monkeypatch.setattr(output.os, "fsync", record)
    with output_folder(target, force=False, needed_bytes=0) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "deep").write_text("x", "utf-8")
        write_bundle(partial, "new")

    for path in (target, *target.rglob("*")):
        assert (path.stat().st_ino, False) in synced
    assert synced[-1] == (target.parent.stat().st_ino, True)


def test_signal_handlers_are_as_before(target):
    before = signal.getsignal(signal.SIGTERM)

    with output_folder(target, force=False, needed_bytes=0):
        assert signal.getsignal(signal.SIGTERM) is not before

    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_writes_too(target):
    def write():
        with output_folder(target, force=False, needed_bytes=0) as partial:
            write_bundle(partial, "new")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()

    assert names(target) == ["manifest.json", "model.onnx"]


CHILD = """
import pathlib, signal, sys, time
from wiola_export.output import output_folder
# Shells start background jobs with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
with output_folder(pathlib.Path(sys.argv[1]), force=True, needed_bytes=0) as partial:
    (partial / "model.onnx").write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_leaves_what_was_there(target, name):
    number = getattr(signal, name)
    old_bundle(target)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, target],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == b"writing\n"
        assert len(names(target.parent)) == 2
        started = time.monotonic()
        child.send_signal(number)
        child.communicate(timeout=20)

    assert time.monotonic() - started < 20
    assert child.returncode in {-number, 128 + number}
    assert names(target.parent) == ["bundle"]
    assert (target / "model.onnx").read_text("utf-8") == "old"
