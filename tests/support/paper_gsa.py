"""The `gsa` model as its paper writes it: numpy, float64, one position and one head at a time.

Scores are multiplied by the gate, where the exporter scales the query.

Axes: T positions, d hidden size, D head size, H heads, V vocabulary.
"""

import math

import numpy as np
from support.paper import sigmoid, silu, split


def logits(config, weights, ids) -> np.ndarray:
    """Return logits (T, V) of one row of token ids (T,)."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config.num_hidden_layers):
        prefix = f"model.layers.{index}."
        layer = {n.removeprefix(prefix): value for n, value in w.items() if n.startswith(prefix)}
        x = x + attention(config, layer, norm(x, layer["input_layernorm.weight"], config))
        x = x + feed_forward(layer, norm(x, layer["post_attention_layernorm.weight"], config))
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return norm(x, w["model.norm.weight"], config) @ w[head].T


def norm(x, weight, config):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps)


def attention(config, w, x):
    """Return the update (T, d) of normed inputs x."""
    q, k, v = (split(x @ w[f"self_attn.{n}_proj.weight"].T, config.head_dim) for n in "qkv")
    rotated, k = rotate(config, q), rotate(config, k)
    gates = np.ones((len(x), config.num_attention_heads))
    if config.use_attention_gate:
        gates = gate(w, q if config.gate_pre_rope else rotated)
    mixed = np.empty_like(q)
    for t in range(len(x)):
        for h in range(config.num_attention_heads):
            scores = k[: t + 1, h] @ rotated[t, h] / math.sqrt(config.head_dim)
            weights = np.exp(gates[t, h] * scores)
            mixed[t, h] = weights @ v[: t + 1, h] / weights.sum()
    return mixed.reshape(len(x), -1) @ w["self_attn.o_proj.weight"].T


def gate(w, q):
    """Return the gates (T, H) of queries (T, H, D)."""
    gates = []
    for t in range(len(q)):
        seen = np.mean([q[u].mean(axis=0) for u in range(t + 1)], axis=0)
        hidden = silu(w["self_attn.gate_fc1.weight"] @ seen)
        gates.append(
            sigmoid(w["self_attn.gate_fc2.weight"] @ hidden + w["self_attn.gate_fc2.bias"])
        )
    return np.stack(gates)


def rotate(config, x):
    """Turn the pairs (i, i + D/2) of (T, heads, D)."""
    turned, half = np.empty_like(x), x.shape[-1] // 2
    for p in range(len(x)):
        for i in range(half):
            spread = 1 + config.spiral_alpha * math.sqrt(i + 1) / math.sqrt(half)
            angle = p * config.rope_theta ** (-2 * i / x.shape[-1]) * spread
            low, high = x[p, :, i], x[p, :, i + half]
            turned[p, :, i] = low * math.cos(angle) - high * math.sin(angle)
            turned[p, :, i + half] = low * math.sin(angle) + high * math.cos(angle)
    return turned


def feed_forward(w, x):
    a, b = np.split(x @ w["mlp.up_proj.weight"].T, 2, axis=-1)
    return (silu(a) * b + x @ w["mlp.bypass_proj.weight"].T) @ w["mlp.down_proj.weight"].T
