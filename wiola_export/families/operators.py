"""The operators of domain `wiola` on the torch side.

Each one computes in eager mode, and is recorded as one call when a model is traced; the ONNX
bodies of the same operators are in `wiola_export.functions`.

Axes: B batch, T new positions, P cached positions, S = P + T, H query heads, K key/value heads,
D head size, d hidden size, n summaries, N and M features.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

Shape = Sequence[int | torch.SymInt]
Attributes = dict[
    str, int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spiral:
    """Constants of a spiral rotary position embedding (Wiola paper, section on SRPE).

    Attributes:
        theta: Base of the frequencies, ω_j = theta^(−2j/D).
        divisor: k_s; the angle is p ω_j (1 + 1/k_s).
        amplitude: a_s; the radius is 1 + a_s sin(p f_s ω_j).
        frequency: f_s.
    """

    theta: float
    divisor: float
    amplitude: float
    frequency: float


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply (…, M) by the transpose of a (N, M) weight, giving (…, N)."""
    if not torch.compiler.is_exporting():
        return functional.linear(x, weight)
    return record("Linear", [x, weight], {}, (*x.shape[:-1], weight.shape[0]))


def silu(x: Tensor) -> Tensor:
    """Apply x · sigmoid(x)."""
    return record("SiLU", [x], {}, x.shape) if torch.compiler.is_exporting() else functional.silu(x)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cut (…, 2·N) in two of (…, N); torch's own would be traced as a sequence of tensors."""
    if not torch.compiler.is_exporting():
        first, second = x.chunk(2, dim=-1)
        return first, second
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    outputs = torch.onnx.ops.symbolic_multi_out(
        "ai.onnx::Split",
        [x],
        {"axis": -1, "num_outputs": 2},
        dtypes=[x.dtype, x.dtype],
        shapes=[shape, shape],
        version=21,
    )
    return outputs[0], outputs[1]


def wrms_norm(x: Tensor, weight: Tensor, offset: Tensor, epsilon: float) -> Tensor:
    """Return γ ⊙ z / sqrt(mean(z²) + epsilon) with z = x + δ, in float32 (WRMSNorm)."""
    if torch.compiler.is_exporting():
        return record("WRMSNorm", [x, weight, offset], {"epsilon": epsilon}, x.shape)
    return rms_norm(x.float() + offset.float(), weight.float(), epsilon).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return γ ⊙ x / sqrt(mean(x²) + epsilon), in float32 (RMSNorm)."""
    if torch.compiler.is_exporting():
        return record("RMSNorm", [x, weight], {"epsilon": epsilon}, x.shape)
    z = x.float()
    z = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + epsilon)
    return (weight.float() * z).to(x.dtype)


def srpe(x: Tensor, positions: Tensor, head_dim: int, spiral: Spiral) -> Tensor:
    """Rotate (B, T, heads·D) by the spiral angle and radius of positions (B, T).

    Pairs are (j, j + D/2).
    """
    if torch.compiler.is_exporting():
        attributes: Attributes = {"head_size": head_dim, **dataclasses.asdict(spiral)}
        return record("SRPE", [x, positions], attributes, x.shape)
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device=x.device)
    omega = spiral.theta ** (-steps / head_dim)
    p = positions.float()[..., None, None]
    angle = p * omega * (1 + 1 / spiral.divisor)
    radius = 1 + spiral.amplitude * torch.sin(p * spiral.frequency * omega)
    cos, sin = radius * torch.cos(angle), radius * torch.sin(angle)
    return _rotate(x, cos, sin)


def spiral_rotary(
    x: Tensor, positions: Tensor, head_dim: int, spiral: tuple[float, float]
) -> Tensor:
    """Rotate (B, T, heads·D) by positions (B, T), the frequencies spread with their index.

    ω_i = theta^(−2i/D) · (1 + alpha · sqrt(i + 1) / sqrt(D/2)); pairs are (i, i + D/2).

    Args:
        x: Queries or keys.
        positions: Absolute positions.
        head_dim: D.
        spiral: theta and alpha; with alpha 0 this is the rotary embedding.
    """
    theta, alpha = spiral
    if torch.compiler.is_exporting():
        attributes: Attributes = {"head_size": head_dim, "theta": theta, "alpha": alpha}
        return record("SpiralRotary", [x, positions], attributes, x.shape)
    index = torch.arange(head_dim // 2, dtype=torch.float32, device=x.device)
    spread = 1 + alpha * torch.sqrt(index + 1) / math.sqrt(head_dim // 2)
    angle = positions.float()[..., None, None] * (theta ** (-2 * index / head_dim) * spread)
    return _rotate(x, torch.cos(angle), torch.sin(angle))


def head_mean(x: Tensor, num_heads: int) -> Tensor:
    """Average (B, T, H·D) over the heads, in float32, giving (B, T, D)."""
    if torch.compiler.is_exporting():
        shape = (*x.shape[:2], x.shape[2] // num_heads)
        return record("HeadMean", [x], {"num_heads": num_heads}, shape)
    return _unflatten(x, (num_heads, -1)).float().mean(-2).to(x.dtype)


def query_gate(q: Tensor, gate: Tensor, num_heads: int) -> Tensor:
    """Multiply the queries (B, T, H·D) of each head by sigmoid(gate), gate (B, T, H)."""
    if torch.compiler.is_exporting():
        return record("QueryGate", [q, gate], {"num_heads": num_heads}, q.shape)
    scaled: Tensor = _unflatten(q, (num_heads, -1)) * torch.sigmoid(gate)[..., None]
    return scaled.flatten(-2)


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor], heads: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend causally over cached and new positions, grouped queries.

    Args:
        q: (B, T, H·D).
        k: (B, T, K·D), like `v`.
        v: (B, T, K·D).
        past: Cached keys and values, (B, K, P, D) each.
        heads: H and K.

    Returns:
        The mixed values (B, T, H·D) and the grown caches (B, K, S, D).
    """
    past_key, past_value = past
    num_heads, groups = heads
    if torch.compiler.is_exporting():
        b, _, p, size = past_key.shape
        grown = (b, groups, p + q.shape[1], size)
        attributes: Attributes = {"num_heads": num_heads, "kv_num_heads": groups}
        outputs = torch.onnx.ops.symbolic_multi_out(
            "wiola::CausalAttention",
            [q, k, v, past_key, past_value],
            attributes,
            dtypes=[q.dtype, k.dtype, v.dtype],
            shapes=[q.shape, grown, grown],
            version=1,
        )
        return outputs[0], outputs[1], outputs[2]
    keys = torch.cat((past_key, split_heads(k, groups)), dim=2)
    values = torch.cat((past_value, split_heads(v, groups)), dim=2)
    queries = split_heads(q, num_heads)
    total, new = keys.shape[2], q.shape[1]
    mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
    mixed = functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, enable_gqa=True
    )
    return mixed.transpose(1, 2).flatten(-2), keys, values


def running_mean(y: Tensor, past_sum: Tensor, inverse_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of all positions up to each one (B, T, d), and the new sum (B, d).

    Args:
        y: (B, T, d).
        past_sum: Float32 sum of the cached positions, (B, d).
        inverse_counts: 1 / (position + 1), float32 (B, T, 1).
    """
    if torch.compiler.is_exporting():
        mean, total = torch.onnx.ops.symbolic_multi_out(
            "wiola::RunningMean",
            [y, past_sum, inverse_counts],
            {},
            dtypes=[y.dtype, past_sum.dtype],
            shapes=[y.shape, past_sum.shape],
            version=1,
        )
        return mean, total
    sums = y.float().cumsum(1) + past_sum[:, None]
    return (sums * inverse_counts).to(y.dtype), sums[:, -1]


def context_attention(q: Tensor, k: Tensor, v: Tensor, heads: tuple[int, int]) -> Tensor:
    """Attend from each position to its own n layer summaries (B, T, n, K·D); no rotation."""
    num_heads, groups = heads
    if torch.compiler.is_exporting():
        attributes: Attributes = {"num_heads": num_heads, "kv_num_heads": groups}
        return record("ContextAttention", [q, k, v], attributes, q.shape)
    keys = _unflatten(k, (groups, 1, -1))  # (B, T, n, K, 1, D)
    values = _unflatten(v, (groups, 1, -1))
    queries = _unflatten(q, (groups, num_heads // groups, -1))[:, :, None]
    scores = (queries * keys).sum(-1, keepdim=True) / math.sqrt(keys.shape[-1])
    mixed: Tensor = (scores.softmax(2) * values).sum(2).flatten(-3)
    return mixed


def gated_blend(own: Tensor, context: Tensor, gate: Tensor, blend_logit: Tensor) -> Tensor:
    """Return sigmoid(gate) ⊙ ((1 − β) own + β context), β = sigmoid(blend_logit)."""
    if torch.compiler.is_exporting():
        return record("GatedBlend", [own, context, gate, blend_logit], {}, own.shape)
    beta = torch.sigmoid(blend_logit)
    mixed: Tensor = torch.sigmoid(gate) * ((1 - beta) * own + beta * context)
    return mixed


def _unflatten(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Cut the last axis in `sizes`."""
    cut: Tensor = x.unflatten(-1, sizes)  # type: ignore[no-untyped-call]
    return cut


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (j, j + D/2) of (B, T, heads·D), given cos and sin (B, T, 1, D/2)."""
    low, high = _unflatten(x, (-1, 2 * cos.shape[-1])).float().chunk(2, dim=-1)
    rotated = torch.cat((low * cos - high * sin, low * sin + high * cos), dim=-1)
    return rotated.flatten(-2).to(x.dtype)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut (B, T, heads·D) in (B, heads, T, D)."""
    return _unflatten(x, (heads, -1)).transpose(1, 2)


def record(op_type: str, inputs: list[Tensor], attributes: Attributes, shape: Shape) -> Tensor:
    """Leave a call of the domain in a traced graph; its result has the first input's type."""
    return torch.onnx.ops.symbolic(
        f"wiola::{op_type}", inputs, attributes, dtype=inputs[0].dtype, shape=shape, version=1
    )
