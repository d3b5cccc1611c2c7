"""What a run of the graph remembers: an argument and a result of every call.

Axes: B batch row, C cache capacity, P tokens already cached.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.errors import BundleError, CapacityError

Sums = tuple[NDArray[Any], ...]  # running sums, in the order of the manifest's states
FIRST_CAPACITY = 256
DTYPES: Mapping[str, type[np.generic]] = {
    "int64": np.int64,
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
}


class Buffer(Protocol):
    """A tensor on the device that computes; ONNX Runtime's `OrtValue` is one."""

    def numpy(self) -> NDArray[Any]:
        """Return the tensor in host memory, which may be its own."""
        ...

    def update_inplace(self, array: NDArray[Any]) -> None:
        """Overwrite the tensor, wherever it lies."""
        ...


@dataclasses.dataclass(slots=True, kw_only=True)
class Call:
    """A binding of one call's inputs and outputs, with the host arrays that feed it."""

    binding: Any
    token_ids: NDArray[np.int64]
    output_positions: NDArray[np.int64]
    logits: NDArray[np.float32]


@dataclasses.dataclass(slots=True, kw_only=True)
class State:
    """All that some rows have left behind in the graph.

    Attributes:
        lengths: Tokens cached per row (B,); the graph reads this very array.
        capacity: Tokens that the cache buffers hold, C; 0 where the cache grows by itself.
        past: What the next call reads, in the order of the manifest's states.
        present: What the next call writes: the same buffer for a shared cache, a second one for
            a running sum, None where the graph returns a new tensor.
        turn: Parity of the calls so far: running sums swap their two buffers at every call.
        steps: Bound calls of one new token per row, one for each parity.
    """

    lengths: NDArray[np.int64]
    capacity: int
    past: list[Buffer]
    present: list[Buffer | None]
    turn: int = 0
    steps: list[Call | None] = dataclasses.field(default_factory=lambda: [None, None])

    def advance(self, written: list[Buffer], new_tokens: int) -> None:
        """Make what a call wrote the past of the next one."""
        recycled = cast("list[Buffer | None]", self.past)
        if written is not self.present:  # the graph allocated some, as it will again
            pairs = zip(self.past, self.present, strict=True)
            recycled = [None if slot is None else past for past, slot in pairs]
        self.past, self.present = written, recycled
        self.turn ^= 1
        self.lengths += new_tokens


def shape_of(axes: Sequence[str | int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Replace named axes by their sizes.

    Raises:
        BundleError: The manifest names an axis that no state has.
    """
    unknown = [axis for axis in axes if isinstance(axis, str) and axis not in sizes]
    if unknown:
        raise BundleError(
            f"the manifest gives a state the axes {unknown}; expected {', '.join(sizes)}; "
            "export again"
        )
    return tuple(axis if isinstance(axis, int) else sizes[axis] for axis in axes)


def copied(buffer: Buffer, part: tuple[Any, ...] = ()) -> NDArray[Any]:
    """Copy a tensor, or a part of it, to host memory that nobody else writes to."""
    return np.array(buffer.numpy()[part], order="C")


def used(axes: Sequence[str | int], length: int) -> tuple[slice, ...]:
    """Return the slices of a state's array that hold its first `length` tokens."""
    return tuple(slice(length) if axis in ("C", "P") else slice(None) for axis in axes)


def capacity_for(tokens: int, context_length: int) -> int:
    """Return the buffer capacity for so many tokens: a power of two, at most the context.

    Doubling keeps a short chat small whatever the context is, and the copies of a long one
    cost less than one more pass over the cache.

    Raises:
        CapacityError: The context is shorter than `tokens`.
    """
    if tokens > context_length:
        raise CapacityError(
            f"{tokens} tokens do not fit the context of {context_length}; shorten the text"
        )
    doubled = 1 << (tokens - 1).bit_length()
    return min(context_length, max(FIRST_CAPACITY, doubled))


def enlarged(parts: Sequence[NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    """Copy caches, the rows of one after those of another, into the corner of one of zeros."""
    new = np.zeros(shape, parts[0].dtype)
    start = 0
    for part in parts:
        rows = slice(start, start + len(part))
        new[rows, *(slice(size) for size in part.shape[1:])] = part
        start = rows.stop
    return new
