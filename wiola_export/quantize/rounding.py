"""Round blocks of weights to integers, with a search for the scale.

Axes: n rows, b blocks of a row, k weights of a block.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.packing import pad_to_blocks

Floats32 = NDArray[np.float32]

# How far the range of a block is shrunk in search of a smaller error. Fewer bits gain more.
SHRINKS = {4: tuple(np.linspace(1.0, 0.72, 15)), 8: (1.0, 0.99, 0.98)}


@dataclasses.dataclass(frozen=True, slots=True)
class Codes:
    """Rounded blocks: weight ≈ (code − zero_point) · scale.

    Attributes:
        codes: (n, b, k) uint8.
        scales: (n, b), in the element type in which they are stored.
        zero_points: (n, b) uint8.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.floating]
    zero_points: NDArray[np.uint8]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Put the rows of several under each other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.scales for part in parts]),
            np.concatenate([part.zero_points for part in parts]),
        )

    def dequantize(self) -> Floats32:
        """Return what a kernel multiplies with, (n, b, k)."""
        steps = self.codes.astype(np.float32) - self.zero_points[..., None]
        return steps * self.scales[..., None].astype(np.float32)

    def matrix(self, columns: int) -> Floats32:
        """Return the same as rows (n, columns), without what only fills the last block."""
        values: Floats32 = self.dequantize().reshape(len(self.codes), -1)[:, :columns]
        return np.ascontiguousarray(values)


def round_blocks(blocks: Floats32, form: Blocks, *, search: bool = True) -> Codes:
    """Round blocks (n, b, k), choosing for each the range with the least squared error.

    Without `search` each block spans its smallest and largest weight (and zero). The error is
    then at most half a step inside the range, and one step at its ends, where the rounded zero
    point may have moved the range.
    """
    shrinks = SHRINKS[form.bits] if search else (1.0,)
    best = _candidate(blocks, form, shrinks[0], refit=search)
    for shrink in shrinks[1:]:
        trial = _candidate(blocks, form, shrink, refit=True)
        better = trial[0] < best[0]
        best = tuple(  # type: ignore[assignment]
            np.where(better, new, old) for new, old in zip(trial, best, strict=True)
        )
    _, scales, zero_points = best
    with np.errstate(over="ignore"):  # who keeps the codes checks them, and names the weight
        stored = scales.astype(form.scales)
    codes = _codes(blocks, stored.astype(np.float32), zero_points, form)
    return Codes(codes.astype(np.uint8), stored, zero_points.astype(np.uint8))


def round_matrix(rows: Floats32, form: Blocks) -> Codes:
    """Round rows (n, K) in blocks; what fills the last block is zero."""
    return round_blocks(pad_to_blocks(rows, form.block_size), form)


def round_rows(rows: Floats32) -> tuple[NDArray[np.int8], Floats32]:
    """Round rows (n, K) to signed integers of ±127 with one scale each, (n,)."""
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    divisor = np.where(scales > 0, scales, 1)[:, None]
    return np.rint(rows / divisor).astype(np.int8), scales.astype(np.float32)


def _candidate(
    blocks: Floats32, form: Blocks, shrink: float, *, refit: bool
) -> tuple[Floats32, Floats32, Floats32]:
    """Return squared error, scale and zero point (n, b) of one range."""
    scales, zero_points = _symmetric(blocks, form) if form.symmetric else spanning(blocks, form)
    scales = scales * np.float32(shrink)
    if not form.symmetric:
        zero_points = np.rint(zero_points / np.float32(shrink)).clip(0, form.highest_code)
    steps = _codes(blocks, scales, zero_points, form) - zero_points[..., None]
    dots = np.einsum("nbk,nbk->nb", blocks, steps)
    squares = np.einsum("nbk,nbk->nb", steps, steps)
    if refit:  # least squares: the scale that fits these codes best
        scales = np.where(squares > 0, dots / np.where(squares > 0, squares, 1), scales)
    errors = scales * (scales * squares - 2 * dots)  # the squares of the weights are constant
    return errors, scales, zero_points


def spanning(blocks: Floats32, form: Blocks) -> tuple[Floats32, Floats32]:
    """Return scale and rounded zero point of the range from smallest to largest weight."""
    low = np.minimum(blocks.min(-1), 0)
    high = np.maximum(blocks.max(-1), 0)
    scales = (high - low) / np.float32(form.highest_code)
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    return scales, np.rint(-low / scales)


def _symmetric(blocks: Floats32, form: Blocks) -> tuple[Floats32, Floats32]:
    """Return a scale that puts the weight farthest from zero on the lowest code."""
    low, high = blocks.min(-1), blocks.max(-1)
    extreme = np.where(-low > high, low, high)
    scales = np.where(extreme == 0, 1, extreme / np.float32(-form.middle)).astype(np.float32)
    return scales, np.full_like(scales, form.middle)


def _codes(blocks: Floats32, scales: Floats32, zero_points: Floats32, form: Blocks) -> Floats32:
    safe = np.where(scales == 0, 1, scales)[..., None]
    codes: Floats32 = np.divide(blocks, safe, dtype=np.float32)
    codes += zero_points[..., None]
    np.rint(codes, out=codes)
    return codes.clip(0, form.highest_code, out=codes)
