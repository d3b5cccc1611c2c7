"""GPTQ: round one input feature after the other, moving each error to the features still to come.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", arXiv 2210.17323, algorithm 1, with static groups and activation order.
Axes: N rows (output features), K input features, b blocks of a row, k features of a block.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.calibrate.moments import Moments
from wiola_export.errors import QuantizationError
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.packing import pad_to_blocks
from wiola_export.quantize.rounding import Codes, round_blocks

# Share of the cross moments that the target is corrected by: all of it fits the calibration text
# too closely (docs/decisions/0007-calibration.md).
CORRECTION = 0.5
# Share of the mean diagonal that is added to it: keeps the factorization stable.
DAMPING = 0.01
DAMPINGS = (DAMPING, 0.1, 1.0, 10.0)
# Errors are moved to later features at once within a batch, and batch-wise beyond it.
BATCH = 128
# Rows do not depend on each other; so many are rounded together, since each takes four copies.
ROWS = 8192
NOT_FINITE = (
    "the inputs of a matrix are not finite in the float model; check the checkpoint, or "
    "round without a text: --calibration none"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """What errors of the features of an input cost, factored for all weights that read it.

    Attributes:
        order: Features in descending order of their second moment, (K,).
        factor: Upper Cholesky factor of the inverse of the damped moments in that order, (K, K).
    """

    order: Tensor
    factor: Tensor


def gptq(weight: Tensor, metric: Metric, form: Blocks) -> Codes:
    """Round a weight (N, K) so that its products with the inputs seen change least.

    Scales and zero points are those of nearest rounding, blocks of the weight in its own order;
    features are rounded in the order of the metric.

    Args:
        weight: Float32 (N, K).
        metric: Of the inputs.
        form: Bits and blocks.

    Raises:
        QuantizationError: The weight is not finite.
    """
    if not torch.isfinite(weight).all():
        raise QuantizationError(NOT_FINITE)
    chunks = (weight[start : start + ROWS] for start in range(0, len(weight), ROWS))
    return Codes.joined([_round_rows(rows, metric, form) for rows in chunks])


def _round_rows(weight: Tensor, metric: Metric, form: Blocks) -> Codes:
    order = metric.order
    ranges = round_blocks(pad_to_blocks(weight.numpy(), form.block_size), form)
    if not np.isfinite(ranges.scales).all():
        return ranges  # who keeps them refuses them, and knows the weight's name
    blocks = order // form.block_size
    scales = torch.from_numpy(ranges.scales.astype("float32"))[:, blocks]
    scales = torch.where(scales == 0, 1, scales)
    zero_points = torch.from_numpy(ranges.zero_points.astype("float32"))[:, blocks]
    rounded = _round(weight[:, order], metric.factor, (scales, zero_points), form.highest_code)
    codes = torch.empty_like(rounded)
    codes[:, order] = rounded
    blocked = pad_to_blocks(codes.numpy(), form.block_size)
    _fill_padding(blocked, ranges, weight.shape[1])
    return Codes(blocked.astype("uint8"), ranges.scales, ranges.zero_points)


def corrected(weights: Sequence[Tensor], moments: Moments) -> list[Tensor]:
    """Return targets (N, K) whose products with the quantized model's inputs are the float ones.

    With x the inputs of the quantized model and y those of the float model, W y is best matched by
    (W Σ y xᵀ (Σ x xᵀ)⁻¹) x; the target goes `CORRECTION` of the way there. Errors of earlier
    layers are thereby made good by later ones.
    """
    damped = moments.inputs.clone()
    damped.diagonal().add_(DAMPING * float(damped.diagonal().mean()) or 1.0)
    lower, failed = torch.linalg.cholesky_ex(damped)
    if failed:
        return [weight.clone() for weight in weights]
    del damped  # for wide matrices each of these takes as much as the layer
    differences = [weight @ moments.cross - weight @ moments.inputs for weight in weights]
    return [
        weight + CORRECTION * torch.cholesky_solve(difference.T, lower).T
        for weight, difference in zip(weights, differences, strict=True)
    ]


def metric_of(moments: Tensor) -> Metric:
    """Factor the second moments Σ x xᵀ of an input, (K, K).

    Features that were never seen get the mean moment: they are rounded to nearest. Damping grows
    until the matrix can be factored.

    Raises:
        QuantizationError: Moments are not finite.
    """
    order = torch.argsort(moments.diagonal(), descending=True, stable=True)
    ordered = moments[order][:, order]
    diagonal = ordered.diagonal()
    mean = float(diagonal.mean()) or 1.0
    diagonal[diagonal == 0] = mean
    added = 0.0
    for damping in DAMPINGS:
        diagonal.add_((damping - added) * mean)
        added = damping
        lower, failed = torch.linalg.cholesky_ex(ordered)
        if failed:
            continue
        inverse = torch.cholesky_inverse(lower)
        del lower
        factor, failed = torch.linalg.cholesky_ex(inverse, upper=True)
        if not failed:
            return Metric(order, factor)
    raise QuantizationError(NOT_FINITE)


def _round(
    weight: Tensor, factor: Tensor, ranges: tuple[Tensor, Tensor], highest_code: int
) -> Tensor:
    """Return the codes (N, K) of ordered columns, as floats; `weight` is used up."""
    scales, zero_points = ranges
    columns = weight.shape[1]
    codes = torch.empty_like(weight)
    for start in range(0, columns, BATCH):
        batch = slice(start, min(start + BATCH, columns))
        found, errors = _round_batch(
            weight[:, batch],
            factor[batch, batch],
            (scales[:, batch], zero_points[:, batch]),
            highest_code,
        )
        codes[:, batch] = found
        weight[:, batch.stop :].addmm_(errors, factor[batch, batch.stop :], alpha=-1)
    return codes


def _round_batch(
    weight: Tensor, factor: Tensor, ranges: tuple[Tensor, Tensor], highest_code: int
) -> tuple[Tensor, Tensor]:
    """Return codes and errors (N, b) of columns whose errors are moved among themselves.

    One column after the other is read and written: turned on its side each is one piece of memory,
    which makes this five times faster.
    """
    columns, scales, zero_points = (part.T.contiguous() for part in (weight, *ranges))
    codes, errors = torch.empty_like(columns), torch.empty_like(columns)
    for i, (value, scale, zero) in enumerate(zip(columns, scales, zero_points, strict=True)):
        codes[i] = (torch.round(value / scale) + zero).clamp_(0, highest_code)
        errors[i] = (value - (codes[i] - zero) * scale) / factor[i, i]
        columns[i:] -= torch.outer(factor[i, i:], errors[i])
    return codes.T, errors.T.contiguous()


def _fill_padding(blocked: NDArray[np.float32], ranges: Codes, columns: int) -> None:
    """Give the features that only fill the last block the code of zero."""
    flat = blocked.reshape(len(blocked), -1)
    flat[:, columns:] = ranges.zero_points[:, -1:]
