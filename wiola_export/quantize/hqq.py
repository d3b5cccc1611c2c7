"""Half-quadratic quantization: zero points that make the usual error small and ignore outliers.

Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023.
Zero points are rounded to integers in every step, since kernels want integers.
Axes: n rows, b blocks of a row, k weights of a block.
"""

import numpy as np

from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.rounding import Codes, Floats32, spanning

# The error counts as |e|^NORM; the solver is the paper's, with its constants.
NORM, BETA, GROWTH, STEPS = 0.7, 10.0, 1.01, 20


def hqq_blocks(blocks: Floats32, form: Blocks) -> Codes:
    """Round blocks (n, b, k) with the zero points of the half-quadratic solver.

    Scales span each block. A step that does not lower the error of a block leaves it as it was.
    """
    scales, zero_points = spanning(blocks, form)
    stored = scales.astype(form.scales)
    scales = stored.astype(np.float32)
    best_zero = zero_points
    least = _loss(blocks - _values(blocks, scales, zero_points, form))
    beta = BETA
    for _ in range(STEPS):
        codes = _codes(blocks, scales, zero_points, form)
        error = blocks - (codes - zero_points[..., None]) * scales[..., None]
        target = blocks - _shrunk(error, beta)
        beta *= GROWTH
        exact = np.mean(codes - target / scales[..., None], axis=-1)
        zero_points = np.rint(exact).clip(0, form.highest_code).astype(np.float32)
        loss = _loss(blocks - _values(blocks, scales, zero_points, form))
        best_zero = np.where(loss < least, zero_points, best_zero)
        least = np.minimum(loss, least)
    codes = _codes(blocks, scales, best_zero, form)
    return Codes(codes.astype(np.uint8), stored, best_zero.astype(np.uint8))


def _shrunk(error: Floats32, beta: float) -> Floats32:
    """Soft-threshold towards the sparse part of the error (the paper's proximal operator)."""
    size = np.abs(error)
    step = np.power(np.maximum(size, 1e-8), NORM - 1) / beta
    return np.asarray(np.sign(error) * np.maximum(size - step, 0), np.float32)


def _codes(blocks: Floats32, scales: Floats32, zero_points: Floats32, form: Blocks) -> Floats32:
    codes = np.rint(blocks / scales[..., None] + zero_points[..., None])
    return np.asarray(codes.clip(0, form.highest_code), np.float32)


def _values(blocks: Floats32, scales: Floats32, zero_points: Floats32, form: Blocks) -> Floats32:
    codes = _codes(blocks, scales, zero_points, form)
    return (codes - zero_points[..., None]) * scales[..., None]


def _loss(error: Floats32) -> Floats32:
    return np.asarray(np.power(np.abs(error), NORM).sum(-1), np.float32)
