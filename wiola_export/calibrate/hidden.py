"""Hidden states of all windows between two layers.

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


class HiddenStates:
    """What groups of windows hand from layer to layer: in memory while it is small, else in files.

    Args:
        groups: Hidden states after the embedding, each of some windows.
        folder: Where states beyond `in_memory_bytes` go, one file for each group.
        in_memory_bytes: Memory for the states of all groups together.
    """

    def __init__(
        self, groups: Iterable[Hidden], folder: Path, in_memory_bytes: int = IN_MEMORY_BYTES
    ) -> None:
        self._folder = folder
        self._limit = in_memory_bytes
        self._groups: list[Hidden | Path] = []
        self._sizes: list[int] = []
        for hidden in groups:
            self._groups.append(hidden)
            self._sizes.append(0)
            self[len(self) - 1] = hidden

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> Hidden:
        group = self._groups[index]
        return _load(group) if isinstance(group, Path) else group

    def __setitem__(self, index: int, hidden: Hidden) -> None:
        size = sum(tensor.nbytes for tensor in (hidden.x, *hidden.carry))
        self._sizes[index] = 0
        if sum(self._sizes) + size <= self._limit:
            self._sizes[index] = size
            self._groups[index] = hidden
            return
        path = self._folder / f"hidden-{index}.npy"
        _save(path, (hidden.x, *hidden.carry))
        self._groups[index] = path

    def __iter__(self) -> Iterator[Hidden]:
        return (self[index] for index in range(len(self)))


def _save(path: Path, tensors: tuple[Tensor, ...]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for tensor in tensors:
            np.save(file, tensor.numpy())
    partial.replace(path)


def _load(path: Path) -> Hidden:
    arrays: list[Tensor] = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            arrays.append(torch.from_numpy(np.load(file, allow_pickle=False)))
    return Hidden(arrays[0], tuple(arrays[1:]))
