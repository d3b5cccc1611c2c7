"""Tensors of groups of windows, in memory while they are few, in files beyond.

Axes: W windows, T tokens of a window.
"""

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.families.layerwise import Hidden

IN_MEMORY_BYTES = 1 << 28
GROUP_WINDOWS = 8


def window_groups(windows: NDArray[np.int64]) -> list[Tensor]:
    """Cut windows (W, T) into groups that go through a layer together."""
    count = math.ceil(len(windows) / GROUP_WINDOWS)
    return [torch.from_numpy(part) for part in np.array_split(windows, count)]


class TensorGroups:
    """A tuple of tensors for each group of windows.

    Args:
        folder: Takes the groups beyond `in_memory_bytes`, one file each; made if need be.
        in_memory_bytes: Memory for all groups together.
    """

    def __init__(self, folder: Path, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._folder = folder
        self._limit = in_memory_bytes
        self._groups: list[tuple[Tensor, ...] | Path] = []
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        group = self._groups[index]
        return _load(group) if isinstance(group, Path) else group

    def __setitem__(self, index: int, tensors: tuple[Tensor, ...]) -> None:
        size = sum(tensor.nbytes for tensor in tensors)
        self._sizes[index] = 0
        if sum(self._sizes) + size <= self._limit:
            self._sizes[index] = size
            self._groups[index] = tensors
            return
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"group-{index}.npy"
        _save(path, tensors)
        self._groups[index] = path

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return (self[index] for index in range(len(self)))

    def append(self, tensors: tuple[Tensor, ...]) -> None:
        """Add the tensors of another group."""
        self._groups.append(())
        self._sizes.append(0)
        self[len(self) - 1] = tensors

    def clear(self) -> None:
        """Let go of all groups and their files."""
        for group in self._groups:
            if isinstance(group, Path):
                group.unlink(missing_ok=True)
        self._groups, self._sizes = [], []


class HiddenStates:
    """What groups of windows hand from layer to layer.

    Args:
        groups: Hidden states after the embedding, each of some windows.
        folder: Takes what is beyond `in_memory_bytes`.
        in_memory_bytes: Memory for the states of all groups together.
    """

    def __init__(
        self, groups: Iterable[Hidden], folder: Path, in_memory_bytes: int = IN_MEMORY_BYTES
    ) -> None:
        self._tensors = TensorGroups(folder, in_memory_bytes)
        for hidden in groups:
            self._tensors.append((hidden.x, *hidden.carry))

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> Hidden:
        x, *carry = self._tensors[index]
        return Hidden(x, tuple(carry))

    def __setitem__(self, index: int, hidden: Hidden) -> None:
        self._tensors[index] = (hidden.x, *hidden.carry)

    def __iter__(self) -> Iterator[Hidden]:
        return (self[index] for index in range(len(self)))


def _save(path: Path, tensors: tuple[Tensor, ...]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for tensor in tensors:
            np.save(file, tensor.numpy())
    partial.replace(path)


def _load(path: Path) -> tuple[Tensor, ...]:
    arrays: list[Tensor] = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            arrays.append(torch.from_numpy(np.load(file, allow_pickle=False)))
    return tuple(arrays)
