"""From the description of a weight to the tensors that stand for it in the file.

A recipe knows names, types and shapes of its tensors beforehand; it reads and rounds the weight
only when the file is written, a few rows at a time, and keeps nothing.
"""

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from wiola_export.quantize.formats import FLOAT_BITS, ActivationRange, Blocks, FloatName
from wiola_export.quantize.packing import pack_nibbles
from wiola_export.quantize.rounded import NEAREST, Rounding, fitting_rows
from wiola_export.quantize.rounding import Codes, round_rows
from wiola_export.weights import Weight

Array = NDArray[np.generic]
Layout = Literal["kernel", "standard"]
CHUNK_WEIGHTS = 1 << 20
BYTE_BITS = 8
FLOAT_TYPES: dict[FloatName, ir.DataType] = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Type and shape of one tensor of a recipe, before it exists."""

    dtype: ir.DataType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return math.ceil(math.prod(self.shape) * self.dtype.itemsize)


class Recipe(Protocol):
    """Makes the tensors of one weight."""

    @property
    def weight(self) -> Weight:
        """What the tensors stand for."""
        ...

    def parts(self) -> Mapping[str, Part]:
        """Return what will be made, by role."""
        ...

    def make(self) -> Mapping[str, Array]:
        """Read the weight and make all tensors."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FloatRecipe:
    """Keeps the weight in floating point."""

    weight: Weight
    dtype: FloatName

    def parts(self) -> Mapping[str, Part]:
        """Return `values`, in the shape of the weight."""
        return {"values": Part(FLOAT_TYPES[self.dtype], self.weight.shape)}

    def make(self) -> Mapping[str, Array]:
        """Read and cast chunk by chunk."""
        values = np.empty(self.weight.shape, self.dtype)
        largest = float(np.finfo(self.dtype).max)
        for start, stop in _chunks(self.weight):
            values[start:stop] = fitting_rows(self.weight, start, stop, largest)
        return {"values": values}


def block_parts(shape: tuple[int, ...], form: Blocks, layout: Layout) -> dict[str, Part]:
    """Return the tensors that stand for a matrix (N, K) in blocks, by role."""
    rows, columns = shape
    blocks = -(-columns // form.block_size)
    floats = FLOAT_TYPES[form.scales]
    if layout == "standard":
        dtype = ir.DataType.UINT4 if form.bits == 4 else ir.DataType.UINT8  # noqa: PLR2004
        return {
            "codes": Part(dtype, (columns, rows)),
            "scales": Part(floats, (blocks, rows)),
            "zero_points": Part(dtype, (blocks, rows)),
        }
    parts = {
        "codes": Part(ir.DataType.UINT8, (rows, blocks, form.block_size * form.bits // 8)),
        "scales": Part(floats, (rows, blocks)),
    }
    if not form.symmetric:
        parts["zero_points"] = Part(ir.DataType.UINT8, (rows, -(-blocks * form.bits // 8)))
    return parts


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockRecipe:
    """Rounds blocks of rows.

    Attributes:
        layout: `kernel` as MatMulNBits reads it: codes (N, b, bytes of a block), padded; zero
            points packed per row. `standard` as the second operand of a MatMul: codes (K, N),
            scales and zero points (b, N), in ONNX's own 4-bit type.
    """

    weight: Weight
    form: Blocks
    layout: Layout
    rounding: Rounding = NEAREST

    def parts(self) -> Mapping[str, Part]:
        """Return `codes`, `scales` and, unless symmetric in a kernel, `zero_points`."""
        return block_parts(self.weight.shape, self.form, self.layout)

    def make(self) -> Mapping[str, Array]:
        """Round chunks of rows, several at a time."""
        parts = self.parts()
        arrays: dict[str, NDArray[Any]] = {
            role: np.empty(part.shape, self.form.scales if role == "scales" else np.uint8)
            for role, part in parts.items()
        }
        chunks = list(_chunks(self.weight))
        # Reading and rounding release the interpreter lock for most of their time.
        with ThreadPoolExecutor(_workers()) as pool:
            for made, (start, stop) in zip(pool.map(self._round, chunks), chunks, strict=True):
                for role, array in arrays.items():
                    self._put(array, role, made, start, stop)
        small = (role for role, part in parts.items() if part.dtype.bitwidth < BYTE_BITS)
        return arrays | {role: pack_nibbles(arrays[role].reshape(-1)) for role in small}

    def _round(self, chunk: tuple[int, int]) -> Codes:
        return self.rounding.rows(self.weight, *chunk, self.form)

    def _put(self, array: Array, role: str, made: Codes, start: int, stop: int) -> None:
        if role == "scales":
            found: Array = made.scales
        else:
            integers = made.codes if role == "codes" else made.zero_points
            packs = self.layout == "kernel" and self.form.bits == 4  # noqa: PLR2004
            found = pack_nibbles(integers) if packs else integers
        if self.layout == "standard":
            array[:, start:stop] = found.reshape(stop - start, -1)[:, : len(array)].T
        else:
            array[start:stop] = found


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SignedRowRecipe:
    """Rounds whole rows for integer matrix products: codes (K, N) int8, scales (N,).

    Attributes:
        activations: How what the weight multiplies is rounded; None finds a range for each token.
    """

    weight: Weight
    activations: ActivationRange | None = None

    def parts(self) -> Mapping[str, Part]:
        """Return `codes`, transposed, and `scales`."""
        rows, columns = self.weight.shape
        return {
            "codes": Part(ir.DataType.INT8, (columns, rows)),
            "scales": Part(ir.DataType.FLOAT, (rows,)),
        }

    def make(self) -> Mapping[str, Array]:
        """Round chunk by chunk."""
        rows, columns = self.weight.shape
        codes, scales = np.empty((columns, rows), np.int8), np.empty(rows, np.float32)
        for start, stop in _chunks(self.weight):
            made, scales[start:stop] = round_rows(self.weight.rows(start, stop))
            codes[:, start:stop] = made.T
        return {"codes": codes, "scales": scales}


class PartTensor(ir.LazyTensor):
    """An initializer that its recipe will make when the file is written.

    A second tensor over the same bytes has another shape and the same recipe and role.
    """

    __slots__ = ("recipe", "role")

    def __init__(
        self, recipe: Recipe, role: str, name: str, shape: tuple[int, ...] | None = None
    ) -> None:
        part = recipe.parts()[role]
        dims = ir.Shape(shape or part.shape)
        super().__init__(
            lambda: (
                ir.PackedTensor(recipe.make()[role], part.dtype, shape=dims)
                if part.dtype.bitwidth < BYTE_BITS
                else ir.tensor(recipe.make()[role].reshape(dims.numpy()))
            ),
            dtype=part.dtype,
            shape=dims,
            name=name,
        )
        self.recipe = recipe
        self.role = role


def stored_bits(recipe: Recipe) -> int:
    """Return the bits of one weight, without scales."""
    if isinstance(recipe, BlockRecipe):
        return recipe.form.bits
    return FLOAT_BITS[recipe.dtype] if isinstance(recipe, FloatRecipe) else 8


def _chunks(weight: Weight) -> Iterator[tuple[int, int]]:
    """Cut the rows of a weight in ranges of about a million weights."""
    rows = weight.shape[0] if weight.shape else 1
    step = max(CHUNK_WEIGHTS // math.prod(weight.shape[1:]), 1)
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _workers() -> int:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
