"""Half-quadratic quantization: ranges that make the usual error small and ignore outliers.

Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023.
The paper moves zero points alone, by fractions. Kernels want integers, and by whole steps none
would ever move; so scales are solved for too, and errors are counted in steps.
Axes: n rows, b blocks of a row, k weights of a block.
"""

import numpy as np

from wiola_export.errors import OptionError
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.rounding import Codes, Floats32, spanning

# The error counts as |e|^NORM; the solver's constants are the paper's.
NORM, BETA, GROWTH, STEPS = 0.7, 10.0, 1.01, 20
# A range shrinks to this share of the block's at most: more would clip what is no outlier.
SMALLEST_SHARE = np.float32(0.5)
SMALLEST_ERROR = np.float32(1e-8)  # in steps; its power is finite


def hqq_blocks(blocks: Floats32, form: Blocks) -> Codes:
    """Round blocks (n, b, k) with the ranges of the half-quadratic solver.

    It begins with ranges that span each block. A step that does not lower the error of a block
    leaves it as it was.

    Raises:
        OptionError: The form stores no zero points.
    """
    if form.symmetric:
        raise OptionError(
            "--method hqq looks for zero points, which --symmetric leaves out; drop --symmetric, "
            "or take --method nearest"
        )
    scales, zero_points = spanning(blocks, form)
    smallest = scales * SMALLEST_SHARE
    best_scales, best_zero = scales, zero_points
    least = np.full_like(scales, np.inf)
    for step in range(STEPS + 1):
        scales = _as_stored(scales, form)
        codes = _codes(blocks, scales, zero_points, form)
        error = blocks / _divisors(scales) - (codes - zero_points[..., None])
        size = np.abs(error)
        power = np.power(np.maximum(size, SMALLEST_ERROR), NORM - 1)
        loss = scales**NORM * (size * power).sum(axis=-1)
        best_scales = np.where(loss < least, scales, best_scales)
        best_zero = np.where(loss < least, zero_points, best_zero)
        least = np.minimum(loss, least)
        # The sparse part of the error is soft-thresholded (the paper's proximal operator).
        sparse = np.sign(error) * np.maximum(size - power / (BETA * GROWTH**step), 0)
        target = np.asarray(blocks - sparse * scales[..., None], np.float32)
        scales = np.maximum(_slope(codes, target, scales), smallest)
        exact = np.mean(codes - target / _divisors(scales), axis=-1)
        zero_points = np.rint(exact).clip(0, form.highest_code).astype(np.float32)
    codes = _codes(blocks, best_scales, best_zero, form)
    return Codes(
        codes.astype(np.uint8), best_scales.astype(form.scales), best_zero.astype(np.uint8)
    )


def _slope(codes: Floats32, target: Floats32, scales: Floats32) -> Floats32:
    """Return the scale of the straight line from codes to weights; equal codes keep theirs."""
    steps = codes - codes.mean(axis=-1, keepdims=True)
    spread = np.square(steps).sum(axis=-1)
    slope = (steps * target).sum(axis=-1) / np.where(spread > 0, spread, 1)
    return np.asarray(np.where(spread > 0, slope, scales), np.float32)


def _as_stored(scales: Floats32, form: Blocks) -> Floats32:
    return np.asarray(scales.astype(form.scales), np.float32)


def _divisors(scales: Floats32) -> Floats32:
    """Return what blocks are divided by: in float16 the scale of a tiny block is zero."""
    return np.where(scales == 0, np.float32(1), scales)[..., None]


def _codes(blocks: Floats32, scales: Floats32, zero_points: Floats32, form: Blocks) -> Floats32:
    codes = np.rint(blocks / _divisors(scales) + zero_points[..., None])
    return np.asarray(codes.clip(0, form.highest_code), np.float32)
