"""Pages of 2 MiB under the weights: asked for where Linux has them, harmless elsewhere."""

import mmap
import threading
from pathlib import Path

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle

import wiola_runtime as wr
from wiola_export.bench.pages import huge_pages
from wiola_runtime import opening, pages

SIZE = 32 << 20
LINUX = pages.MAPS.is_file()
needs_huge_pages = pytest.mark.skipif(
    huge_pages() not in {"madvise", "always"}, reason="this system has no huge pages to ask for"
)


def huge_bytes() -> int:
    """Return how much of this process's memory lies in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))


@needs_huge_pages
def test_what_was_taken_since_then_gets_huge_pages():
    before, huge = pages.private_memory(), huge_bytes()
    taken = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE)
    taken[:: mmap.PAGESIZE] = bytes(range(256)) * (SIZE // mmap.PAGESIZE // 256)

    enlarged = pages.enlarge_pages(before)

    if not enlarged:
        pytest.skip("Linux gave none: it is older than 6.1, or its memory is in small pieces")
    assert huge_bytes() - huge >= SIZE - 2 * pages.HUGE
    assert taken[:: mmap.PAGESIZE] == bytes(range(256)) * (SIZE // mmap.PAGESIZE // 256)


@pytest.mark.skipif(not LINUX, reason="only Linux tells of its memory")
def test_what_was_there_before_is_left_alone():
    there = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE)
    there[:: mmap.PAGESIZE] = bytes(SIZE // mmap.PAGESIZE)

    assert pages.enlarge_pages(pages.private_memory()) == 0


@needs_huge_pages
def test_what_melts_with_new_memory_is_left_alone_too():
    """Linux puts a new mapping beside the last one, and tells of both as one."""
    there = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE)
    there[:: mmap.PAGESIZE] = bytes(SIZE // mmap.PAGESIZE)
    before = pages.private_memory()
    taken = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE)
    taken[:: mmap.PAGESIZE] = bytes(SIZE // mmap.PAGESIZE)

    assert pages.enlarge_pages(before) <= SIZE


def test_the_new_parts_of_a_span_are_what_was_taken(monkeypatch):
    monkeypatch.setattr(pages, "private_memory", lambda: {(10, 50), (60, 70), (80, 90)})

    taken = pages._taken({(20, 30), (35, 40), (65, 75)})

    assert {(first, end) for first, end in taken if first < end} == {
        (10, 20), (30, 35), (40, 50), (60, 65), (80, 90),
    }  # fmt: skip


def test_a_system_that_does_not_tell_of_its_memory_is_not_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "MAPS", tmp_path / "maps")

    assert pages.private_memory() == set()
    assert pages.enlarge_pages(set()) == 0


def test_only_writable_memory_without_a_file_is_private(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0000000000-7f0002000000 rw-p 00000000 00:00 0 \n"
        "7f0003000000-7f0004000000 rw-p 00000000 00:00 0                  [heap]\n"
        "7f0005000000-7f0006000000 r--p 00000000 00:00 0 \n"
        "7f0007000000-7f0008000000 rw-s 00000000 00:01 12                 /dev/zero (deleted)\n"
        "7f0009000000-7f000a000000 rw-p 00000000 fe:00 260131             /a file/with spaces\n"
    )
    monkeypatch.setattr(pages, "MAPS", maps)

    assert pages.private_memory() == {
        (0x7F0000000000, 0x7F0002000000),
        (0x7F0003000000, 0x7F0004000000),
    }


def test_a_bundle_answers_alike_on_pages_of_any_size(tmp_path):
    folder = TinyBundle().write(tmp_path / "bundle")
    ids = [1, 2, 3, 4]

    logits = [wr.load(folder, huge_pages=huge).logits(ids) for huge in (True, False)]

    assert np.array_equal(*logits)


@needs_huge_pages
def test_the_weights_of_a_bundle_get_them_only_where_asked(tmp_path, monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(opening, "enlarge_pages", lambda before: before and asked.set())
    folder = TinyBundle().write(tmp_path / "bundle")

    wr.load(folder, huge_pages=False)
    assert not asked.wait(0.1)
    wr.load(folder)
    assert asked.wait(10)
