"""Read row ranges of a safetensors file; nothing stays mapped or cached between two reads.

The format: 8 bytes with the header's length (little endian), the header (a JSON object: name to
dtype, shape and byte range), then the tensors back to back until the end of the file. The
`safetensors` package maps the whole file, and touched pages count as memory until it is closed;
here a read costs what it returns.
"""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from wiola_export.checkpoint.source_file import check_content, parse_json_object, read_range
from wiola_export.errors import CheckpointError

DType = Literal["F32", "F16", "BF16"]

_STORAGE: dict[DType, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors package
_BLOCK_SIZE = 4 * 1024 * 1024  # numbers that are converted at once


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: bytes [start, stop) of the file at `path`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    path: Path
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Count the rows along axis 0; a scalar is one row."""
        return self.shape[0] if self.shape else 1


def read_header(path: Path) -> dict[str, TensorInfo]:
    """List the tensors of a file, in the order in which they are stored.

    Raises:
        CheckpointError: The file is absent, truncated, no safetensors file, or holds an element
            type other than float32, float16 and bfloat16.
    """
    size_bytes = check_content(path)
    length = int.from_bytes(read_range(path, 0, _LENGTH_BYTES), "little")
    data_start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or data_start > size_bytes:
        raise CheckpointError(
            f"{path} has {size_bytes:,} bytes and announces a header of {length:,}: "
            f"truncated or no safetensors file; download or copy it again"
        )
    header = parse_json_object(read_range(path, _LENGTH_BYTES, length), path)
    header.pop("__metadata__", None)
    found = [_tensor_info(path, name, entry, data_start) for name, entry in header.items()]
    found.sort(key=lambda info: (info.start, info.stop))
    _check_layout(path, found, data_start, size_bytes)
    return {info.name: info for info in found}


def read_rows(info: TensorInfo, start: int, stop: int) -> NDArray[np.float32]:
    """Read rows [start, stop) along axis 0, converted exactly to float32.

    Returns:
        Array of shape (stop - start, *info.shape[1:]).

    Raises:
        CheckpointError: The file cannot be read any more, or a value is not finite.
        IndexError: The tensor has no such rows.
    """
    if not 0 <= start <= stop <= info.rows:
        raise IndexError(f"{info.name} has {info.rows} rows, asked for [{start}, {stop})")
    row_size = math.prod(info.shape[1:])
    values = np.empty((stop - start) * row_size, np.float32)
    for first in range(0, values.size, _BLOCK_SIZE):
        block = values[first : first + _BLOCK_SIZE]
        block[...] = _read_values(info, start * row_size + first, block.size)
        finite = np.isfinite(block)
        if not finite.all():
            bad = int(np.argmin(finite))
            raise CheckpointError(
                f"{info.path}: {info.name} has {block[bad]} in row "
                f"{start + (first + bad) // row_size}, expected finite weights; "
                f"use a checkpoint from before the training diverged"
            )
    return values.reshape(stop - start, *info.shape[1:])


def _read_values(info: TensorInfo, first: int, count: int) -> NDArray[np.generic]:
    storage = _STORAGE[info.dtype]
    offset = info.start + first * storage.itemsize
    raw = read_range(info.path, offset, count * storage.itemsize)
    if len(raw) < count * storage.itemsize:
        raise CheckpointError(
            f"{info.path} ends before {info.name} does: "
            f"the file changed while it was read; export again"
        )
    return np.frombuffer(raw, storage)


def _tensor_info(path: Path, name: str, entry: object, data_start: int) -> TensorInfo:
    match entry:
        case {
            "dtype": str(dtype),
            "shape": [*shape],
            "data_offsets": [int(begin), int(end)],
        } if 0 <= begin <= end and all(isinstance(n, int) and n >= 0 for n in shape):
            _check_dtype(path, name, dtype)
        case _:
            raise CheckpointError(
                f"{path}: the header describes {name} as {str(entry)[:80]}, expected dtype, "
                f"shape and data_offsets; download or copy the file again"
            )
    info = TensorInfo(
        name, cast("DType", dtype), tuple(shape), path, data_start + begin, data_start + end
    )
    if end - begin != math.prod(shape) * _STORAGE[info.dtype].itemsize:
        raise CheckpointError(
            f"{path}: {name} is {dtype} of shape {shape} in {end - begin:,} bytes, which is "
            f"not its size; download or copy the file again"
        )
    return info


def _check_dtype(path: Path, name: str, dtype: str) -> None:
    if dtype in _STORAGE:
        return
    advice = "convert it to float32" if dtype == "F64" else "export from the float checkpoint"
    raise CheckpointError(
        f"{path}: {name} is stored as {dtype}, expected {', '.join(_STORAGE)}; {advice}"
    )


def _check_layout(
    path: Path, ordered: Iterable[TensorInfo], data_start: int, size_bytes: int
) -> None:
    """Refuse gaps, overlaps, and a file that is shorter or longer than its header says."""
    stop = data_start
    for info in ordered:
        if info.start != stop:
            raise CheckpointError(
                f"{path}: {info.name} starts at byte {info.start:,}, expected {stop:,}; "
                f"download or copy the file again"
            )
        stop = info.stop
    if stop != size_bytes:
        fault = "truncated" if stop > size_bytes else "damaged"
        raise CheckpointError(
            f"{path} is {fault}: it has {size_bytes:,} bytes, its header describes {stop:,}; "
            f"download or copy it again"
        )
