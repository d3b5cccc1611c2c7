"""A scratch folder goes away, whatever happens, and never takes the result with it."""

import os
import tempfile
from pathlib import Path

import pytest

from wiola_export.scratch import scratch_folder


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def filled(folder):
    (folder / "inner").mkdir()
    (folder / "inner" / "codes.bin").write_bytes(b"1")
    (folder / "hidden.npy").write_bytes(b"2")


def denied(path, *_, **__):
    raise PermissionError(13, "is used by another process", path)


def test_it_is_empty_and_goes_away_with_all_that_was_put_there(tmp_path):
    warnings = []

    with scratch_folder("wiola-", warnings.append) as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith("wiola-")
        assert list(folder.iterdir()) == []
        filled(folder)

    assert list(tmp_path.iterdir()) == []
    assert warnings == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_it_goes_away_when_the_work_fails(tmp_path, error):
    with pytest.raises(error):
        with scratch_folder("wiola-", pytest.fail) as folder:
            filled(folder)
            raise error

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("calls", [("unlink",), ("rmdir",), ("unlink", "rmdir")])
def test_what_is_still_in_use_is_a_warning(monkeypatch, calls):
    """The result is there already: losing it over a leftover would be the larger fault."""
    warnings = []

    with scratch_folder("wiola-", warnings.append) as folder:
        filled(folder)
        for call in calls:
            monkeypatch.setattr(os, call, denied)

    assert warnings == [f"{folder} could not be removed; delete it by hand"]
    monkeypatch.undo()
    assert folder.is_dir()


def test_all_but_what_is_in_use_goes_away(monkeypatch):
    unlink = os.unlink

    def one_denied(path, *rest, **options):
        if Path(path).name == "hidden.npy":
            denied(path)
        unlink(path, *rest, **options)

    with scratch_folder("wiola-", lambda _: None) as folder:
        filled(folder)
        monkeypatch.setattr(os, "unlink", one_denied)

    assert [path.name for path in folder.iterdir()] == ["hidden.npy"]
