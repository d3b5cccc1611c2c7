"""The `gsa` model in torch, in the form that is traced.

Parameter names are those of the package `wiola13m` 1.0.1.
Axes: B batch, T new positions, d hidden size, H heads, D head size.
"""

import torch
from torch import Tensor, nn

from wiola_export.families import operators as ops
from wiola_export.families.decoder import Decoder, RMSNorm
from wiola_export.families.gsa.config import GsaConfig
from wiola_export.families.layered import (
    Carry,
    Layer,
    Matrix,
    Positions,
    Rescaling,
    State,
)


class BiasedMatrix(Matrix):
    """A linear map with a bias."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(rows, columns)
        self.bias = nn.Parameter(torch.empty(rows), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return super().forward(x) + self.bias


class Attention(nn.Module):
    """Causal self-attention whose scores are scaled by a gate of each head (GSA).

    The gate g of a query is its own: softmax(g (q · k)) is softmax((g q) · k).
    """

    def __init__(self, config: GsaConfig) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        self.q_proj = Matrix(hidden, hidden)
        self.k_proj = Matrix(hidden, hidden)
        self.v_proj = Matrix(hidden, hidden)
        self.o_proj = Matrix(hidden, hidden)
        self._gated = config.use_attention_gate
        if self._gated:
            self.gate_fc1 = Matrix(heads, config.head_dim)
            self.gate_fc2 = BiasedMatrix(heads, heads)
        self._reads_unrotated = config.gate_pre_rope
        self._heads = heads
        self._head_dim = config.head_dim
        self._rotation = config.rope_theta, config.spiral_alpha

    def forward(self, x: Tensor, at: Positions, past: State) -> tuple[Tensor, State]:
        """Map (B, T, d) to (B, T, d) and the new state: keys, values, perhaps a sum (B, D)."""
        plain = self.q_proj(x)
        q = ops.spiral_rotary(plain, at.index, self._head_dim, self._rotation)
        k = ops.spiral_rotary(self.k_proj(x), at.index, self._head_dim, self._rotation)
        sums: State = ()
        if self._gated:
            gate, total = self._gate(plain if self._reads_unrotated else q, at, past[2])
            q, sums = ops.query_gate(q, gate, self._heads), (total,)
        heads = self._heads, self._heads
        mixed, *caches = ops.causal_attention(q, k, self.v_proj(x), (past[0], past[1]), heads)
        return self.o_proj(mixed), (*caches, *sums)

    def _gate(self, q: Tensor, at: Positions, past_sum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gate (B, T, H) before its sigmoid, and the new sum of the mean queries."""
        averaged = ops.head_mean(q, self._heads)
        mean, total = ops.running_mean(averaged, past_sum, at.inverse_counts)
        return self.gate_fc2(ops.silu(self.gate_fc1(mean))), total


class ButterflyFeedForward(nn.Module):
    """A gated stream, and a linear one past the gate."""

    def __init__(self, config: GsaConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.up_proj = Matrix(2 * inner, hidden)
        self.bypass_proj = Matrix(inner, hidden)
        self.down_proj = Matrix(hidden, inner)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, d) to (B, T, d)."""
        a, b = ops.halves(self.up_proj(x))
        mixed: Tensor = self.down_proj(ops.silu(a) * b + self.bypass_proj(x))
        return mixed


class GsaLayer(Layer):
    """Attention and feed-forward with residuals; nothing is carried from layer to layer."""

    rescalings = (
        Rescaling(
            readers=tuple(f"self_attn.{name}_proj.weight" for name in ("q", "k", "v")),
            producers=("input_layernorm.weight",),
        ),
        Rescaling(readers=("self_attn.o_proj.weight",), producers=("self_attn.v_proj.weight",)),
        Rescaling(
            readers=("mlp.up_proj.weight", "mlp.bypass_proj.weight"),
            producers=("post_attention_layernorm.weight",),
        ),
        # What mlp.down_proj reads is linear in the bypass and in the second half of up_proj alone;
        # a producer is a whole parameter.
    )

    def __init__(self, config: GsaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = ButterflyFeedForward(config)
        self.num_states = 2 + config.use_attention_gate

    def forward(
        self, x: Tensor, carry: Carry, at: Positions, past: State
    ) -> tuple[Tensor, Carry, State]:
        """Map (B, T, d) to (B, T, d); state: keys, values, perhaps a sum."""
        update, state = self.self_attn(self.input_layernorm(x), at, past)
        x = x + update
        return x + self.mlp(self.post_attention_layernorm(x)), carry, state


class GsaModel(Decoder):
    """The whole model."""

    def __init__(self, config: GsaConfig) -> None:
        super().__init__(
            (config.vocab_size, config.hidden_size),
            (GsaLayer(config) for _ in range(config.num_hidden_layers)),
            ("norm", RMSNorm(config.hidden_size, config.rms_norm_eps)),
            tied=config.tie_word_embeddings,
        )
