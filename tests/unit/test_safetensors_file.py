"""Tensors are read exactly, by rows, and a damaged file is refused before it is used."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from support.checkpoint_folder import DEMO, LFS_POINTER, entry, write_raw

from wiola_export.checkpoint.safetensors_file import read_header, read_rows
from wiola_export.errors import CheckpointError

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def refused(path, message):
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_finite_16_bit_pattern_keeps_its_value(path, dtype):
    bits = np.arange(2**16, dtype=np.uint16)
    values = bits.view(DTYPES[dtype]) if dtype != "F32" else bits.astype(np.float32) / 3
    values = values[np.isfinite(values.astype(np.float32))]
    save_file({"w": values}, path)

    info = read_header(path)["w"]
    read = read_rows(info, 0, info.rows)

    assert info.dtype == dtype
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, values.astype(np.float32))


def test_the_demo_reads_as_the_safetensors_package_reads_it():
    found = read_header(DEMO / "model.safetensors")

    with safe_open(DEMO / "model.safetensors", "numpy") as reference:
        assert set(found) == set(reference.keys())
        for name, info in found.items():
            expected = reference.get_tensor(name).astype(np.float32)
            assert info.shape == expected.shape
            got = read_rows(info, 0, info.rows).reshape(info.shape)
            np.testing.assert_array_equal(got, expected, err_msg=name)


@hypothesis.given(
    shape=st.lists(st.integers(1, 5), max_size=3),
    dtype=st.sampled_from(sorted(DTYPES)),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_a_row_range_is_that_slice_of_the_tensor(shape, dtype, cut):
    values = np.random.default_rng(1).normal(size=shape).astype(DTYPES[dtype])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "w.safetensors"
        save_file({"before": np.ones(3, np.float16), "w": np.asarray(values)}, file)
        info = read_header(file)["w"]
        start, stop = sorted(round(part * info.rows) for part in cut)

        rows = read_rows(info, start, stop)

    np.testing.assert_array_equal(rows, np.atleast_1d(values)[start:stop].astype(np.float32))


def test_rows_that_do_not_exist_are_a_mistake_of_the_caller(path):
    save_file({"w": np.ones((4, 2), np.float32)}, path)

    with pytest.raises(IndexError, match=re.escape("w has 4 rows, asked for [3, 5)")):
        read_rows(read_header(path)["w"], 3, 5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_that_is_not_finite_is_named_by_tensor_and_row(path, dtype, bad):
    values = np.ones((6, 4), DTYPES[dtype])
    values[4, 1] = bad
    save_file({"layer.w": values}, path)
    info = read_header(path)["layer.w"]

    assert read_rows(info, 0, 4).sum() == 16
    message = f"{path}: layer.w has {bad} in row 4, expected finite weights"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_rows(info, 3, 6)


def test_the_last_value_of_a_tensor_longer_than_one_block_is_checked_too(path):
    values = np.zeros((2049, 2048), np.float16)
    values[2048, 2047] = np.nan
    save_file({"w": values}, path)

    with pytest.raises(CheckpointError, match="has nan in row 2048"):
        read_rows(read_header(path)["w"], 1, 2049)


def test_a_file_that_shrinks_between_two_reads_is_noticed(path):
    save_file({"w": np.ones((4, 2), np.float32)}, path)
    info = read_header(path)["w"]
    path.write_bytes(path.read_bytes()[:-4])

    with pytest.raises(CheckpointError, match=r"ends before w does: the file changed"):
        read_rows(info, 0, 4)


def test_a_file_that_vanishes_between_two_reads_is_noticed(path):
    save_file({"w": np.ones(2, np.float32)}, path)
    info = read_header(path)["w"]
    path.unlink()

    with pytest.raises(CheckpointError, match=r"cannot be read \(No such file or directory\)"):
        read_rows(info, 0, 2)


def test_a_truncated_file_is_named_with_both_sizes(path):
    save_file({"w": np.ones((4, 2), np.float32)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])

    refused(
        path,
        f"{path} is truncated: it has {len(whole) - 5} bytes, "
        f"its header describes {len(whole)}; download or copy it again",
    )


def test_bytes_after_the_last_tensor_are_refused(path):
    save_file({"w": np.ones(2, np.float32)}, path)
    path.write_bytes(path.read_bytes() + b"x")

    refused(path, f"{path} is damaged: it has")


def test_a_file_cut_inside_its_header_is_truncated(path):
    save_file({"w": np.ones(2, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:20])

    refused(path, f"{path} has 20 bytes and announces a header of ")


def test_something_else_is_no_safetensors_file(path):
    path.write_bytes(b"<!DOCTYPE html><html>not found</html>")

    refused(path, "truncated or no safetensors file; download or copy it again")


def test_a_git_lfs_pointer_is_told_how_to_become_a_file(path):
    path.write_bytes(LFS_POINTER)

    refused(
        path,
        f"{path} is a Git LFS pointer, expected the file itself; "
        f"run `git lfs pull` in {path.parent}",
    )


def test_an_empty_file_is_refused(path):
    path.touch()

    refused(path, f"{path} is empty (0 bytes); download or copy it again")


@pytest.mark.parametrize(
    ("dtype", "size_bytes", "advice"),
    [
        ("F64", 8, "convert it to float32"),
        ("I8", 1, "export from the float checkpoint"),
        ("F8_E4M3", 1, "export from the float checkpoint"),
        ("I32", 4, "export from the float checkpoint"),
    ],
)
def test_another_element_type_is_refused_by_name(path, dtype, size_bytes, advice):
    write_raw(path, {"w": entry(dtype, [2], 0, 2 * size_bytes)}, bytes(2 * size_bytes))

    refused(path, f"{path}: w is stored as {dtype}, expected F32, F16, BF16; {advice}")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "holds a JSON list, expected an object"),
        (b'{"w": 1, "w": 2}', "key 'w' comes twice"),
        (b'{"w": 1}', "the header describes w as 1, expected dtype, shape and data_offsets"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        ({"w": entry("F32", [2], 4, 0)}, "the header describes w as"),
        ({"w": entry("F32", [-2], 0, 8)}, "the header describes w as"),
        ({"w": entry("F32", [2.0], 0, 8)}, "the header describes w as"),
        (
            {"w": entry("F32", [3], 0, 8)},
            "w is F32 of shape [3] in 8 bytes, which is not its size",
        ),
        ({"w": entry("F32", [2], 4, 12)}, "w starts at byte"),
        (
            {"v": entry("F32", [2], 0, 8), "w": entry("F32", [2], 4, 12)},
            "download or copy the file again",
        ),
    ],
)
def test_a_header_that_lies_is_refused(path, header, message):
    write_raw(path, header, bytes(12))

    refused(path, message)


@hypothesis.given(position=st.integers(0, 200), byte=st.integers(0, 255))
@hypothesis.settings(max_examples=150, deadline=None)
def test_one_wrong_byte_is_refused_or_gives_what_the_safetensors_package_gives(position, byte):
    tensors = {"a": np.ones((2, 2), np.float32), "b": np.full(3, 2, np.float16)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "w.safetensors"
        save_file(tensors, file)
        whole = bytearray(file.read_bytes())
        whole[position % len(whole)] = byte
        file.write_bytes(whole)
        try:
            found = read_header(file)
        except CheckpointError:
            return
        try:
            with safe_open(file, "numpy") as reference:
                names = reference.keys()
                shapes = {k: tuple(reference.get_slice(k).get_shape()) for k in names}
        except SafetensorError:
            return
    assert {name: info.shape for name, info in found.items()} == shapes


MEASURE = """
import pathlib, resource, sys
from wiola_export.checkpoint.safetensors_file import read_header, read_rows
info = read_header(pathlib.Path(sys.argv[1]))["w"]
read_rows(info, 0, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for start in range(0, info.rows, 256):
    read_rows(info, start, min(start + 256, info.rows))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_peak_memory_does_not_grow_with_what_was_read(path):
    columns, rows = 1024, 60_000
    data_bytes = 2 * rows * columns  # 117 MiB that occupy no disk: a hole reads as zeros
    write_raw(path, {"w": entry("BF16", [rows, columns], 0, data_bytes)})
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size + data_bytes)

    grown = subprocess.run(
        [sys.executable, "-c", MEASURE, path], check=True, capture_output=True, text=True
    )

    assert int(grown.stdout) < 16  # MiB
