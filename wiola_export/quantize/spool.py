"""Rounded weights on their way to the bundle, kept in files so that memory does not grow.

Axes: N rows, b blocks of a row, k weights of a block.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wiola_export.errors import QuantizationError
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.rounding import Codes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundedWeight:
    """The codes of one weight (N, b, k) in a file.

    Attributes:
        form: How it was rounded.
        rows: N.
        blocks: b.
    """

    path: Path
    form: Blocks
    rows: int
    blocks: int

    def read(self, start: int, stop: int) -> Codes:
        """Read rows [start, stop)."""
        size, blocks = self.form.block_size, self.blocks
        scale_bytes = np.dtype(self.form.scales).itemsize
        codes = self._bytes(blocks * size, start, stop, after=0)
        scales = self._bytes(blocks * scale_bytes, start, stop, after=blocks * size)
        zero_points = self._bytes(blocks, start, stop, after=blocks * (size + scale_bytes))
        return Codes(
            codes.reshape(-1, blocks, size),
            scales.reshape(-1).view(self.form.scales).reshape(-1, blocks),
            zero_points,
        )

    def _bytes(self, row_bytes: int, start: int, stop: int, *, after: int) -> NDArray[np.uint8]:
        """Read rows of the part that begins behind `after` bytes of every row."""
        offset = self.rows * after + start * row_bytes
        flat = np.fromfile(self.path, np.uint8, (stop - start) * row_bytes, offset=offset)
        return flat.reshape(stop - start, row_bytes)


class Spool(Mapping[str, RoundedWeight]):
    """Rounded weights by the name of their tensor, in a folder that its maker removes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._weights: dict[str, RoundedWeight] = {}

    def put(self, name: str, codes: Codes, form: Blocks) -> None:
        """Keep the codes of a tensor; a second time replaces the first.

        Raises:
            QuantizationError: A scale is beyond what its type holds.
        """
        check_scales(name, codes, form)
        path = self._folder / f"codes-{next(self._numbers)}.bin"
        with path.open("wb") as file:
            for part in (codes.codes, codes.scales, codes.zero_points):
                np.ascontiguousarray(part).tofile(file)
        rows, blocks = codes.scales.shape
        self._weights[name] = RoundedWeight(path=path, form=form, rows=rows, blocks=blocks)

    def __getitem__(self, name: str) -> RoundedWeight:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def check_scales(name: str, codes: Codes, form: Blocks) -> None:
    """Refuse scales that have overflowed.

    Raises:
        QuantizationError: One has.
    """
    if not np.isfinite(codes.scales).all():
        raise QuantizationError(
            f"{name} has a scale beyond {form.scales}; check the checkpoint, or keep floating "
            "point with --fp16 or --fp32"
        )
