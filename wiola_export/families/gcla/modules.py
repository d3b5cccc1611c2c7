"""The `gcla` model in torch, in the form that is traced; ATM does not exist at inference.

Parameter names are those of the package `wiola` 0.1.1.
Axes: B batch, T new positions, d hidden size, H query heads, K key/value heads, D head size,
n summaries of earlier layers (at most the lookback).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from wiola_export.families import operators as ops
from wiola_export.families.decoder import Decoder
from wiola_export.families.gcla.config import GclaConfig
from wiola_export.families.layered import (
    Carry,
    Layer,
    Matrix,
    Positions,
    Rescaling,
    State,
)


class WRMSNorm(nn.Module):
    """Root-mean-square norm of a shifted input."""

    def __init__(self, config: GclaConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.hidden_size), requires_grad=False)
        self.offset = nn.Parameter(torch.empty(config.hidden_size), requires_grad=False)
        self.epsilon = config.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, d) to (…, d)."""
        return ops.wrms_norm(x, self.weight, self.offset, self.epsilon)


class Attention(nn.Module):
    """Causal self-attention blended with attention to the summaries of earlier layers (GCLA)."""

    def __init__(self, config: GclaConfig, index: int) -> None:
        super().__init__()
        hidden, grouped = config.hidden_size, config.num_key_value_heads * config.head_dim
        self.q_proj = Matrix(hidden, hidden)
        self.k_proj = Matrix(grouped, hidden)
        self.v_proj = Matrix(grouped, hidden)
        self.o_proj = Matrix(hidden, hidden)
        self.gate_proj = Matrix(hidden, hidden)
        self.k_ctx_proj = Matrix(grouped, hidden)
        self.v_ctx_proj = Matrix(grouped, hidden)
        self.blend_logit = nn.Parameter(torch.empty(()), requires_grad=False)
        self._heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = config.head_dim
        self._spiral = ops.Spiral(
            theta=config.srpe_theta,
            divisor=config.srpe_spiral_divisor,
            amplitude=config.srpe_radial_amplitude,
            frequency=config.srpe_radial_frequency,
        )
        self._lookback = min(config.gcla_lookback, index)

    def forward(
        self, x: Tensor, summaries: Carry, at: Positions, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map (B, T, d) to (B, T, d), keys and values; layer 0 has no summaries and no blend."""
        q = ops.srpe(self.q_proj(x), at.index, self._head_dim, self._spiral)
        k = ops.srpe(self.k_proj(x), at.index, self._head_dim, self._spiral)
        mixed, keys, values = ops.causal_attention(q, k, self.v_proj(x), past, self._heads)
        gate = self.gate_proj(x)
        if self._lookback:
            stacked = torch.stack(summaries[-self._lookback :], dim=2)  # (B, T, n, d)
            context = ops.context_attention(
                q, self.k_ctx_proj(stacked), self.v_ctx_proj(stacked), self._heads
            )
            mixed = ops.gated_blend(mixed, context, gate, self.blend_logit)
        else:
            mixed = torch.sigmoid(gate) * mixed
        return self.o_proj(mixed), keys, values


class DualStreamFeedForward(nn.Module):
    """A narrow SwiGLU and a wide GELU stream, fused by a learned gate (DSFF)."""

    def __init__(self, config: GclaConfig) -> None:
        super().__init__()
        hidden, narrow, wide = (
            config.hidden_size,
            config.dsff_narrow_size,
            config.dsff_wide_size,
        )
        self.gate_a = Matrix(narrow, hidden)
        self.up_a = Matrix(narrow, hidden)
        self.down_a = Matrix(hidden, narrow)
        self.up_b = Matrix(wide, hidden)
        self.down_b = Matrix(hidden, wide)
        self.fusion = Matrix(hidden, 2 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, d) to (B, T, d)."""
        a = self.down_a(ops.silu(self.gate_a(x)) * self.up_a(x))
        b = self.down_b(functional.gelu(self.up_b(x)))
        alpha = torch.sigmoid(self.fusion(torch.cat((a, b), dim=-1)))
        mixed: Tensor = b + alpha * (a - b)
        return mixed


class GclaLayer(Layer):
    """Attention and feed-forward with residuals, and the running mean of what comes out."""

    def __init__(self, config: GclaConfig, index: int) -> None:
        super().__init__()
        self.input_norm = WRMSNorm(config)
        self.attn = Attention(config, index)
        self.post_attn_norm = WRMSNorm(config)
        self.ffn = DualStreamFeedForward(config)
        self._summarizes = index < config.num_hidden_layers - 1
        self._lookback = config.gcla_lookback
        self.num_states = 2 + self._summarizes
        self.rescalings = _rescalings(config, blended=index > 0)

    def forward(
        self, x: Tensor, carry: Carry, at: Positions, past: State
    ) -> tuple[Tensor, Carry, State]:
        """Carry the means of the last layers, oldest first; state: keys, values, sum."""
        update, keys, values = self.attn(self.input_norm(x), carry, at, (past[0], past[1]))
        x = x + update
        y = x + self.ffn(self.post_attn_norm(x))
        if not self._summarizes:
            return y, carry, (keys, values)
        mean, total = ops.running_mean(y, past[2], at.inverse_counts)
        return y, (*carry, mean)[-self._lookback :], (keys, values, total)


def _rescalings(config: GclaConfig, *, blended: bool) -> tuple[Rescaling, ...]:
    """List the exact freedoms: norms, attention values, and the gated narrow stream.

    The gate of the attention output and the blend with the context are elementwise or linear in
    the values; the wide stream has a GELU between its matrices, and the input of the fusion is
    read by the fusion's result as well: these have none.
    """
    attention = tuple(f"attn.{name}_proj.weight" for name in ("q", "k", "v", "gate"))
    values = ("attn.v_proj.weight", *(("attn.v_ctx_proj.weight",) if blended else ()))
    streams = tuple(f"ffn.{name}.weight" for name in ("gate_a", "up_a", "up_b"))
    return (
        Rescaling(readers=attention, producers=("input_norm.weight",)),
        Rescaling(
            readers=("attn.o_proj.weight",),
            producers=values,
            repeats=config.num_attention_heads // config.num_key_value_heads,
            run=config.head_dim,
        ),
        Rescaling(readers=streams, producers=("post_attn_norm.weight",)),
        Rescaling(readers=("ffn.down_a.weight",), producers=("ffn.up_a.weight",)),
    )


class GclaModel(Decoder):
    """The whole model."""

    def __init__(self, config: GclaConfig) -> None:
        super().__init__(
            (config.vocab_size, config.hidden_size),
            (GclaLayer(config, index) for index in range(config.num_hidden_layers)),
            ("final_norm", WRMSNorm(config)),
            tied=config.tie_word_embeddings,
        )
