"""The `moment` model as its description writes it: numpy, float64, one position at a time.

Everything is computed anew for the whole text; nothing is cached. Slow and obvious; nothing of the
exporter is used but the names of the configuration.

Axes: T positions, d hidden size, D head size, V vocabulary.
"""

import math

import numpy as np


def logits(config, weights, ids) -> np.ndarray:
    """Return logits (T, V) of one row of token ids (T,)."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    y, previous = w["model.embed_tokens.weight"][ids], None
    for index in range(config.num_hidden_layers):
        prefix = f"model.layers.{index}."
        layer = {n.removeprefix(prefix): v for n, v in w.items() if n.startswith(prefix)}
        h = y
        a, variance = attend(config, layer, h)
        y = feed_forward(config, layer, a, variance, previous)
        previous = h, a, y
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return rms_norm(config, y, w["model.final_norm.weight"]) @ w[head].T


def s(config, x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.unit_norm_eps)


def rms_norm(config, x, gain):
    return gain * x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps)


def attend(config, w, h):
    """Return the post-attention state and the variance, (T, d) each."""
    x = rms_norm(config, h, w["input_norm.weight"])
    q, k, v = (split(x @ w[f"attn.{name}_proj.weight"].T, config.head_dim) for name in "qkv")
    q, k = rotate(config, q), rotate(config, k)
    mean, variance = np.empty_like(v), np.empty_like(v)
    for t in range(len(x)):
        for head in range(config.num_attention_heads):
            scores = k[: t + 1, head] @ q[t, head] / math.sqrt(config.head_dim)
            p = np.exp(scores - scores.max())
            p /= p.sum()
            values = v[: t + 1, head]
            mean[t, head] = p @ values
            second = p @ values**2
            variance[t, head] = np.maximum(second - mean[t, head] ** 2, 0)
    mean, variance = mean.reshape(h.shape), variance.reshape(h.shape)
    assert not variance[0].any()
    gate = sigmoid(x @ w["attn.gate_proj.weight"].T)
    return s(config, h + (gate * mean) @ w["attn.o_proj.weight"].T), variance


def rotate(config, x):
    """Turn the pairs (j, j + D/2) of (T, heads, D)."""
    turned, half = np.empty_like(x), x.shape[-1] // 2
    for p in range(len(x)):
        for j in range(half):
            angle = p * config.rope_theta ** (-2 * j / x.shape[-1])
            low, high = x[p, :, j], x[p, :, j + half]
            turned[p, :, j] = low * math.cos(angle) - high * math.sin(angle)
            turned[p, :, j + half] = low * math.sin(angle) + high * math.cos(angle)
    return turned


def feed_forward(config, w, a, variance, previous):
    """Return the output of a layer, (T, d)."""
    x = rms_norm(config, a, w["post_attn_norm.weight"])
    pre = x @ w["ffn.base_proj.weight"].T
    if previous is not None:
        pre = pre + delta(config, w, a, previous)
    pre = pre + features(config, variance) @ w["ffn.variance_proj.weight"].T
    g, u = np.split(pre, 2, axis=-1)
    return s(config, a + (g * sigmoid(g) * u) @ w["ffn.down_proj.weight"].T)


def features(config, variance):
    """Return direction and magnitude of the variance, (T, d + 1)."""
    r = np.log1p(variance / config.variance_scale)
    m, eps = (r**2).mean(-1, keepdims=True), config.variance_eps
    direction = r / np.sqrt(m + eps)
    magnitude = np.log1p(np.sqrt(m + eps)) - np.log1p(np.sqrt(eps))
    return np.concatenate([direction, magnitude], axis=-1)


def delta(config, w, a, previous):
    """Return what the previous layer's (h, a, y) add to the feed-forward part, (T, 2w)."""
    h_prev, a_prev, y_prev = previous
    by_attention, by_ffn = s(config, a_prev - h_prev), s(config, y_prev - a_prev)
    q = a @ w["ffn.differences.q_proj.weight"].T
    scores = np.stack(
        [
            (q * (by_attention @ w["ffn.differences.k_a_proj.weight"].T)).sum(-1),
            (q * (by_ffn @ w["ffn.differences.k_f_proj.weight"].T)).sum(-1),
        ]
    ) / math.sqrt(config.difference_size)
    p = np.exp(scores - scores.max(0))
    p_attention, p_ffn = (p / p.sum(0))[..., None]
    return p_attention * (by_attention @ w["ffn.differences.a_proj.weight"].T) + p_ffn * (
        by_ffn @ w["ffn.differences.f_proj.weight"].T
    )


def split(x, size):
    return x.reshape(len(x), -1, size)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
