"""Weights as descriptions: where the numbers come from and what is done to them on the way.

Nothing is read until rows are asked for, so that a model of any size passes through a few
megabytes. Matrices are (N, K): output features, input features.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Rows = NDArray[np.float32]
RANDOM_STD = 0.02
_RANDOM_ROWS = 64


class WeightSource(Protocol):
    """Gives rows of named tensors as float32; a checkpoint is one."""

    def read_rows(self, name: str, start: int, stop: int) -> Rows:
        """Return rows [start, stop) along the first axis; a scalar counts as one row."""
        ...


class Weight(Protocol):
    """A matrix or vector that can be produced row by row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """Checkpoint tensors that it is made from."""
        ...

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows [start, stop) along the first axis."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredWeight:
    """A tensor as the checkpoint holds it, with rows or columns in another order if need be."""

    source: WeightSource
    name: str
    shape: tuple[int, ...]
    reordered: tuple[int, tuple[int, ...]] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Return its own name."""
        return (self.name,)

    def rows(self, start: int, stop: int) -> Rows:
        """Read rows; a reordered first axis is read row by row."""
        if self.reordered is None:
            return self.source.read_rows(self.name, start, stop)
        axis, indices = self.reordered
        if axis == 1:
            return self.source.read_rows(self.name, start, stop)[:, list(indices)]
        wanted = indices[start:stop]
        return np.concatenate([self.source.read_rows(self.name, i, i + 1) for i in wanted])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Multiplied:
    """A weight whose numbers are multiplied on the way."""

    weight: Weight

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return self.weight.shape

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the weight."""
        return self.weight.sources


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ScaledWeight(_Multiplied):
    """A weight times a constant."""

    factor: float

    def rows(self, start: int, stop: int) -> Rows:
        """Scale rows."""
        return self.weight.rows(start, stop) * np.float32(self.factor)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """What rows (N,) and columns (K,) of a tensor are multiplied by; None leaves them alone."""

    rows: Rows | None = None
    columns: Rows | None = None

    def times(self, *, rows: Rows | None = None, columns: Rows | None = None) -> "Factors":
        """Return the product with further factors."""
        return Factors(_product(self.rows, rows), _product(self.columns, columns))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RescaledWeight(_Multiplied):
    """A tensor whose rows and columns are multiplied by factors."""

    factors: Factors

    def rows(self, start: int, stop: int) -> Rows:
        """Read rows and multiply them."""
        rows = self.weight.rows(start, stop)
        if self.factors.rows is not None:
            factors = self.factors.rows[start:stop]
            rows = rows * factors.reshape(-1, *[1] * (rows.ndim - 1))
        return rows if self.factors.columns is None else rows * self.factors.columns


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StackedWeight:
    """Matrices of equal K, one above the other."""

    parts: tuple[Weight, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """All rows of all parts."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of all parts."""
        return tuple(name for part in self.parts for name in part.sources)

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows that may span several parts."""
        pieces = [part.rows(*span) for part, span in self.spans(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def spans(self, start: int, stop: int) -> list[tuple[Weight, tuple[int, int]]]:
        """Return the parts that rows [start, stop) lie in, each with its own rows."""
        found: list[tuple[Weight, tuple[int, int]]] = []
        offset = 0
        for part in self.parts:
            first, last = max(start - offset, 0), min(stop - offset, part.shape[0])
            if first < last:
                found.append((part, (first, last)))
            offset += part.shape[0]
        return found


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RandomSource:
    """Seeded random weights in the shape of a model; rows do not depend on how they are read.

    Attributes:
        shapes: Shape of every tensor.
        constants: Tensors that hold one value; all others are normal with deviation 0.02.
        seed: Seed of all of them.
    """

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, float]
    seed: int = 0

    def read_rows(self, name: str, start: int, stop: int) -> Rows:
        """Draw rows [start, stop) of a tensor."""
        shape = self.shapes[name]
        if name in self.constants:
            size = (stop - start, *shape[1:]) if shape else ()
            return np.full(size, self.constants[name], np.float32)
        first = start // _RANDOM_ROWS
        blocks = [self._block(name, i) for i in range(first, -(-stop // _RANDOM_ROWS))]
        offset = first * _RANDOM_ROWS
        return np.concatenate(blocks)[start - offset : stop - offset]

    def _block(self, name: str, index: int) -> Rows:
        shape = self.shapes[name]
        rows = min(_RANDOM_ROWS, shape[0] - index * _RANDOM_ROWS)
        generator = np.random.default_rng([self.seed, zlib.crc32(name.encode()), index])
        return generator.standard_normal((rows, *shape[1:]), np.float32) * np.float32(RANDOM_STD)


class WeightTensor(ir.LazyTensor):
    """An initializer whose numbers are still a description; float32, as rows are."""

    __slots__ = ("weight",)

    def __init__(self, weight: Weight, name: str) -> None:
        super().__init__(
            lambda: ir.tensor(whole(weight)),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(weight.shape),
            name=name,
        )
        self.weight = weight


def whole(weight: Weight) -> Rows:
    """Read all rows of a weight; a scalar comes back with shape ()."""
    rows = weight.rows(0, weight.shape[0] if weight.shape else 1)
    return rows.reshape(weight.shape)


def initializer_weight(value: ir.Value | None) -> Weight | None:
    """Return the weight behind a graph value, if it is one."""
    tensor = None if value is None else value.const_value
    return tensor.weight if isinstance(tensor, WeightTensor) else None


def bind(model: ir.Model, weight_of: Callable[[str, tuple[int, ...]], Weight]) -> ir.Model:
    """Give every initializer of a traced graph its weight, by name and shape, unread."""
    for name, value in model.graph.initializers.items():
        assert value.shape is not None
        value.const_value = WeightTensor(weight_of(name, tuple(value.shape.numpy())), name)
    return model


def _product(one: Rows | None, other: Rows | None) -> Rows | None:
    if one is None or other is None:
        return other if one is None else one
    product: Rows = one * other
    return product
