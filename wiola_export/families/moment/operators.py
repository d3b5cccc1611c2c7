"""The operators of domain `wiola` that only this family has, on the torch side.

Each one computes in eager mode, and is recorded as one call when a model is traced; the ONNX
bodies are in `wiola_export.functions`.

Axes: B batch, T new positions, P cached positions, S = P + T, H heads, D head size, d = H·D,
n difference size, N features.
"""

import math

import torch
from torch import Tensor

from wiola_export.families import operators as ops


def unit_norm(x: Tensor, epsilon: float) -> Tensor:
    """Return S(x) = x / sqrt(mean(x²) + epsilon), in float32."""
    if torch.compiler.is_exporting():
        return ops.record("UnitNorm", [x], {"epsilon": epsilon}, x.shape)
    wide = x.float()
    unit: Tensor = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return unit.to(x.dtype)


def moment_attention(
    q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor], num_heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend causally; return mean and variance of the values under the attention's weights.

    Both moments are taken about the value at the row's first position. That changes no variance,
    makes the one at the first position exactly zero, and lets little cancel while values are alike.

    Args:
        q: (B, T, H·D), like `k` and `v`.
        k: Rotated keys.
        v: Values.
        past: Cached keys and values, (B, H, P, D) each.
        num_heads: H.

    Returns:
        Mean and variance (B, T, H·D), and the grown caches (B, H, S, D).
    """
    if torch.compiler.is_exporting():
        return _record_attention(q, k, v, past, num_heads)
    keys = torch.cat((past[0], ops.split_heads(k, num_heads)), dim=2)
    values = torch.cat((past[1], ops.split_heads(v, num_heads)), dim=2)
    queries = ops.split_heads(q, num_heads)
    total, new = keys.shape[2], q.shape[1]
    mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
    scores = queries @ keys.mT / math.sqrt(keys.shape[-1])
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    origin = values[:, :, :1]
    shifted = values - origin
    first, second = (weights @ torch.cat((shifted, shifted.square()), dim=-1)).chunk(2, dim=-1)
    variance = (second - first.square()).clamp(min=0)
    mean = first + origin
    return _join_heads(mean), _join_heads(variance), keys, values


def variance_features(variance: Tensor, scale: float, epsilon: float) -> Tensor:
    """Return direction and magnitude of r = log1p(variance / scale), (…, d) to (…, d + 1).

    The magnitude is log1p(sqrt(m + ε)) − log1p(sqrt(ε)), m = mean(r²), written without a difference
    of nearly equal numbers.
    """
    if torch.compiler.is_exporting():
        attributes: ops.Attributes = {"scale": scale, "epsilon": epsilon}
        shape = (*variance.shape[:-1], variance.shape[-1] + 1)
        return ops.record("VarianceFeatures", [variance], attributes, shape)
    r = torch.log1p(variance / scale)
    m = r.square().mean(-1, keepdim=True)
    root, floor = torch.sqrt(m + epsilon), math.sqrt(epsilon)
    magnitude = torch.log1p(m / ((root + floor) * (1 + floor)))
    return torch.cat((r / root, magnitude), dim=-1)


def route_differences(
    query: Tensor, keys: tuple[Tensor, Tensor], updates: tuple[Tensor, Tensor]
) -> Tensor:
    """Mix two updates (…, N) by the softmax of their keys (…, n) with a query (…, n)."""
    (first_key, second_key), (first, second) = keys, updates
    if torch.compiler.is_exporting():
        inputs = [query, first_key, second_key, first, second]
        return ops.record("DifferenceRouting", inputs, {}, first.shape)
    score = (query * (first_key - second_key)).sum(-1, keepdim=True) / math.sqrt(query.shape[-1])
    mixed: Tensor = second + torch.sigmoid(score) * (first - second)
    return mixed


def _record_attention(
    q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor], num_heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    b, heads, p, size = past[0].shape
    grown = (b, heads, p + q.shape[1], size)
    mean, variance, keys, values = torch.onnx.ops.symbolic_multi_out(
        "wiola::MomentAttention",
        [q, k, v, *past],
        {"num_heads": num_heads},
        dtypes=[q.dtype, q.dtype, k.dtype, v.dtype],
        shapes=[q.shape, q.shape, grown, grown],
        version=1,
    )
    return mean, variance, keys, values


def _join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(-2)
