"""The `moment` model in torch, in the form that is traced.

Each layer attends for the mean and the variance of values; the variance and what the previous
layer changed steer its feed-forward part. Only keys and values are kept of the past.

Axes: B batch, T new positions, d hidden size, w intermediate size, n difference size.
"""

import torch
from torch import Tensor, nn

from wiola_export.families import operators as ops
from wiola_export.families.decoder import Decoder, RMSNorm
from wiola_export.families.layered import (
    Carry,
    Layer,
    Matrix,
    Positions,
    Rescaling,
    State,
)
from wiola_export.families.moment import operators as moments
from wiola_export.families.moment.config import MomentConfig


class Attention(nn.Module):
    """Causal attention to mean and variance of the values; the mean is gated."""

    def __init__(self, config: MomentConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.q_proj = Matrix(hidden, hidden)
        self.k_proj = Matrix(hidden, hidden)
        self.v_proj = Matrix(hidden, hidden)
        self.gate_proj = Matrix(hidden, hidden)
        self.o_proj = Matrix(hidden, hidden)
        self._heads, self._head_dim = config.num_attention_heads, config.head_dim
        self._rotation = config.rope_theta, 0.0  # no spiral: the ordinary rotation

    def forward(
        self, x: Tensor, at: Positions, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Map (B, T, d) to the update and the variance (B, T, d), keys and values."""
        q = ops.spiral_rotary(self.q_proj(x), at.index, self._head_dim, self._rotation)
        k = ops.spiral_rotary(self.k_proj(x), at.index, self._head_dim, self._rotation)
        mean, variance, keys, values = moments.moment_attention(
            q, k, self.v_proj(x), past, self._heads
        )
        update: Tensor = self.o_proj(torch.sigmoid(self.gate_proj(x)) * mean)
        return update, variance, keys, values


class Differences(nn.Module):
    """What the previous layer's two parts changed, weighed by the stream of this one."""

    def __init__(self, config: MomentConfig) -> None:
        super().__init__()
        hidden, size, wide = (
            config.hidden_size,
            config.difference_size,
            2 * config.intermediate_size,
        )
        self.q_proj = Matrix(size, hidden)
        self.k_a_proj = Matrix(size, hidden)
        self.k_f_proj = Matrix(size, hidden)
        self.a_proj = Matrix(wide, hidden)
        self.f_proj = Matrix(wide, hidden)

    def forward(self, a: Tensor, differences: Carry) -> Tensor:
        """Map the stream and the two differences, (B, T, d) each, to (B, T, 2w)."""
        by_attention, by_ffn = differences
        keys = self.k_a_proj(by_attention), self.k_f_proj(by_ffn)
        updates = self.a_proj(by_attention), self.f_proj(by_ffn)
        return moments.route_differences(self.q_proj(a), keys, updates)


class FeedForward(nn.Module):
    """A SwiGLU that also reads the variance and, but in the first layer, routed differences."""

    def __init__(self, config: MomentConfig, index: int) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.intermediate_size
        self.differences = Differences(config) if index else None
        self.base_proj = Matrix(2 * width, hidden)
        self.variance_proj = Matrix(2 * width, hidden + 1)
        self.down_proj = Matrix(hidden, width)
        self._scale, self._epsilon = config.variance_scale, config.variance_eps

    def forward(self, x: Tensor, a: Tensor, variance: Tensor, differences: Carry) -> Tensor:
        """Map the normed and the plain stream and the variance, (B, T, d) each, to (B, T, d)."""
        features = moments.variance_features(variance, self._scale, self._epsilon)
        wide = self.base_proj(x) + self.variance_proj(features)
        if self.differences is not None:
            wide = wide + self.differences(a, differences)
        gate, up = ops.halves(wide)
        update: Tensor = self.down_proj(ops.silu(gate) * up)
        return update


class MomentLayer(Layer):
    """Attention and feed-forward; each sum with the stream is brought to unit size.

    The freedoms of a quantizer are the norms' gains. The values have none, since their variance is
    not linear in them; those of the feed-forward's `up` half are rows of matrices whose other rows
    are the gate's.
    """

    num_states = 2
    rescalings = (
        Rescaling(
            readers=tuple(f"attn.{name}_proj.weight" for name in ("q", "k", "v", "gate")),
            producers=("input_norm.weight",),
        ),
        Rescaling(readers=("ffn.base_proj.weight",), producers=("post_attn_norm.weight",)),
    )

    def __init__(self, config: MomentConfig, index: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config)
        self.post_attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = FeedForward(config, index)
        self._epsilon = config.unit_norm_eps
        self._is_last = index == config.num_hidden_layers - 1

    def forward(
        self, x: Tensor, carry: Carry, at: Positions, past: State
    ) -> tuple[Tensor, Carry, State]:
        """Carry what attention and feed-forward changed, at unit size; state: keys, values."""
        update, variance, keys, values = self.attn(self.input_norm(x), at, (past[0], past[1]))
        a = moments.unit_norm(x + update, self._epsilon)
        update = self.ffn(self.post_attn_norm(a), a, variance, carry)
        y = moments.unit_norm(a + update, self._epsilon)
        changes = () if self._is_last else (a - x, y - a)
        return y, tuple(moments.unit_norm(c, self._epsilon) for c in changes), (keys, values)


class MomentModel(Decoder):
    """The whole model."""

    def __init__(self, config: MomentConfig) -> None:
        super().__init__(
            (config.vocab_size, config.hidden_size),
            (MomentLayer(config, index) for index in range(config.num_hidden_layers)),
            ("final_norm", RMSNorm(config.hidden_size, config.rms_norm_eps)),
            tied=config.tie_word_embeddings,
        )
