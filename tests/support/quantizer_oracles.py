"""The quantizers as their papers write them: one weight after the other, in float64.

Nothing here is fast. GPTQ updates the whole inverse Hessian after every column, HQQ solves one
block at a time, and AWQ tries every exponent on the outputs themselves instead of their moments.

Axes: S tokens, N rows, K input features, b blocks of a row, k weights of a block.
"""

import dataclasses

import numpy as np

from wiola_export.quantize.rounding import Codes

DAMPING = 0.01
NORM, BETA, GROWTH, STEPS = 0.7, 10.0, 1.01, 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """What an oracle found.

    Attributes:
        codes: Integers, (N, K).
        margins: How far the closest decision of a row was from a tie, in steps, (N,).
        clamped: Whether a row had a weight beyond its range when its turn came, (N,).
        worst: Σ (s / 2)² / [H⁻¹]_qq: what the steps of a row cost at most if none is clamped, (N,).
    """

    codes: np.ndarray
    margins: np.ndarray
    clamped: np.ndarray
    worst: np.ndarray


def gptq(weight, moments, ranges: Codes, highest_code) -> Rounded:
    """Quantize columns in descending order of their moment (arXiv 2210.17323, section 3).

    After column q, every column still to come is moved by − (w_q − ŵ_q) / [H⁻¹]_qq · [H⁻¹]_q,:
    and q leaves the inverse: H⁻¹ ← H⁻¹ − [H⁻¹]_:,q [H⁻¹]_q,: / [H⁻¹]_qq (equations 2 and 3).

    Args:
        weight: (N, K).
        moments: Σ x xᵀ, (K, K).
        ranges: Scales and zero points of each block, of the weight in its own order.
        highest_code: Largest integer.
    """
    work = np.array(weight, np.float64)
    inverse = np.linalg.inv(damped(moments))
    block_size = ranges.codes.shape[-1]
    codes, margins = np.zeros(work.shape, int), np.full(len(work), np.inf)
    clamped, worst = np.zeros(len(work), bool), np.zeros(len(work))
    waiting = list(np.argsort(-np.diagonal(moments), kind="stable"))
    while waiting:
        column = waiting.pop(0)
        scale = ranges.scales[:, column // block_size].astype(np.float64)
        zero = ranges.zero_points[:, column // block_size].astype(np.float64)
        exact = work[:, column] / scale
        codes[:, column] = np.clip(np.rint(exact) + zero, 0, highest_code)
        beyond = np.rint(exact) + zero != codes[:, column]
        ties = 0.5 - np.abs(exact - np.rint(exact))
        margins = np.minimum(margins, np.where(beyond, np.inf, ties))
        clamped |= beyond
        worst += (scale / 2) ** 2 / inverse[column, column]
        error = work[:, column] - (codes[:, column] - zero) * scale
        work[:, waiting] -= np.outer(error / inverse[column, column], inverse[column, waiting])
        removed = np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse = inverse - removed
    return Rounded(codes=codes, margins=margins, clamped=clamped, worst=worst)


def damped(moments):
    """Return the Hessian of the least-squares problem with features never seen made average."""
    hessian = np.array(moments, np.float64)
    mean = np.diagonal(hessian).mean() or 1.0
    for feature in np.flatnonzero(np.diagonal(hessian) == 0):
        hessian[feature, feature] = mean
    return hessian + DAMPING * mean * np.eye(len(hessian))


def hqq_block(block, form):
    """Return scale and zero point of one block (k,) after the half-quadratic solver.

    With errors e in steps: W_e ← s · shrink(e), then (s, z) of the line W − W_e ≈ s (W_q − z) with
    z rounded, then β ← κ β. The ranges with the least Σ |w − ŵ|^p are kept.
    """
    weights, beta = np.asarray(block, np.float64), BETA
    widest, zero = span(weights, form)
    scale = as_stored(widest, form)
    best = scale, zero
    for _ in range(STEPS):
        codes = block_codes(weights, scale, zero, form.highest_code)
        steps_off = weights / scale - (codes - zero)
        target = weights - scale * np.asarray([shrunk(e, beta) for e in steps_off])
        if np.ptp(codes) > 0:
            scale = max(np.polyfit(codes, target, 1)[0], widest / 2)
        zero = np.clip(np.rint(np.mean(codes - target / scale)), 0, form.highest_code)
        scale, beta = as_stored(scale, form), beta * GROWTH
        best = min(best, (scale, zero), key=lambda r: hqq_loss(weights, *r, form.highest_code))
    return best


def as_stored(scale, form):
    """Round a scale to the type of the form."""
    return float(np.dtype(form.scales).type(scale))


def shrunk(error, beta):
    """Return sign(e) · max(|e| − |e|^(p − 1) / β, 0), the generalized soft threshold."""
    if error == 0:
        return 0.0
    return np.sign(error) * max(abs(error) - abs(error) ** (NORM - 1) / beta, 0.0)


def hqq_loss(weights, scale, zero, highest_code):
    """Return Σ |w − ŵ|^p of one block."""
    codes = block_codes(weights, scale, zero, highest_code)
    return (np.abs(weights - (codes - zero) * scale) ** NORM).sum()


def block_codes(weights, scale, zero, highest_code):
    """Round to the nearest code of the range."""
    return np.clip(np.rint(weights / scale + zero), 0, highest_code)


def awq_error(weight, scales, inputs, form):
    """Return ‖(W − Q(W · s) / s) X‖² for inputs (S, K); Q rounds to nearest (arXiv 2306.00978)."""
    return output_error(weight, nearest(weight * scales, form) / scales, inputs)


def awq_scales(magnitudes, exponent, limits):
    """Return the magnitudes to a power, with the middle of their range brought to 1."""
    powers = np.asarray(magnitudes, np.float64) ** exponent
    return np.clip(powers / np.sqrt(powers.max() * powers.min()), *limits)


def nearest(weight, form):
    """Round a matrix to nearest, block by block, each spanning its weights and zero."""
    rounded = np.array(weight, np.float64)
    for row in rounded:
        for start in range(0, len(row), form.block_size):
            block = row[start : start + form.block_size]
            block[:] = nearest_block(block, form)
    return rounded


def nearest_block(block, form):
    """Round one block to the grid of its own range."""
    if not block.any():
        return block
    scale, zero = span(block, form)
    return (block_codes(block, scale, zero, form.highest_code) - zero) * scale


def span(block, form):
    """Return scale and zero point of the range of a block, zero included."""
    if form.symmetric:
        return block[np.argmax(np.abs(block))] / -form.middle, form.middle
    low, high = min(block.min(), 0), max(block.max(), 0)
    scale = (high - low) / form.highest_code
    return scale, np.rint(-low / scale)


def output_error(weight, rounded, inputs):
    """Return ‖(W − Ŵ) X‖² for inputs (S, K)."""
    difference = np.asarray(weight, np.float64) - np.asarray(rounded, np.float64)
    return float((np.square(np.asarray(inputs, np.float64) @ difference.T)).sum())
