"""The `gcla` model as its paper writes it: numpy, float64, one position and one head at a time.

Slow and obvious; nothing of the exporter is used but the names of the configuration.

Axes: T positions, d hidden size, D head size, V vocabulary.
"""

import math

import numpy as np


def logits(config, weights, ids) -> np.ndarray:
    """Return logits (T, V) of one row of token ids (T,)."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = w["model.embed_tokens.weight"][ids]
    summaries = []
    for index in range(config.num_hidden_layers):
        layer = {
            name.removeprefix(f"model.layers.{index}."): value
            for name, value in w.items()
            if name.startswith(f"model.layers.{index}.")
        }
        seen = summaries[-config.gcla_lookback :] if index else []
        normed = norm(x, layer, "input_norm", config)
        x = x + attention(config, layer, normed, seen)
        x = x + feed_forward(layer, norm(x, layer, "post_attn_norm", config))
        summaries.append(np.cumsum(x, axis=0) / np.arange(1, len(ids) + 1)[:, None])
    x = norm(x, w, "model.final_norm", config)
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return x @ w[head].T


def norm(x, w, name, config):
    z = x + w[f"{name}.offset"]
    mean_square = (z * z).mean(-1, keepdims=True)
    return w[f"{name}.weight"] * z / np.sqrt(mean_square + config.rms_norm_eps)


def attention(config, w, x, summaries):
    """Return the update (T, d) of normed inputs x and the summaries (T, d) before it."""
    heads, groups, size = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    q, k, v = (split(x @ w[f"attn.{n}_proj.weight"].T, size) for n in "qkv")
    q, k = rotate(config, q), rotate(config, k)
    context_keys = [split(s @ w["attn.k_ctx_proj.weight"].T, size) for s in summaries]
    context_values = [split(s @ w["attn.v_ctx_proj.weight"].T, size) for s in summaries]
    beta = sigmoid(w["attn.blend_logit"])
    mixed = np.empty_like(q)
    for t in range(len(x)):
        for h in range(heads):
            blocked = config.gqa_grouping == "blocked"
            g = h // (heads // groups) if blocked else h % groups
            own = attend(q[t, h], k[: t + 1, g], v[: t + 1, g])
            if summaries:
                keys = np.stack([key[t, g] for key in context_keys])
                values = np.stack([value[t, g] for value in context_values])
                own = (1 - beta) * own + beta * attend(q[t, h], keys, values)
            mixed[t, h] = own
    gate = sigmoid(x @ w["attn.gate_proj.weight"].T)
    return (gate * mixed.reshape(len(x), -1)) @ w["attn.o_proj.weight"].T


def attend(query, keys, values):
    """Mix values (n, D) by the softmax of their keys with a query (D,)."""
    scores = keys @ query / math.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def rotate(config, x):
    """Turn and stretch the pairs (j, j + D/2) of (T, heads, D)."""
    turned, half = np.empty_like(x), x.shape[-1] // 2
    for p in range(len(x)):
        for j in range(half):
            omega = config.srpe_theta ** (-2 * j / x.shape[-1])
            angle = p * omega * (1 + 1 / config.srpe_spiral_divisor)
            wave = math.sin(p * config.srpe_radial_frequency * omega)
            radius = 1 + config.srpe_radial_amplitude * wave
            low, high = x[p, :, j], x[p, :, j + half]
            turned[p, :, j] = radius * (low * math.cos(angle) - high * math.sin(angle))
            turned[p, :, j + half] = radius * (low * math.sin(angle) + high * math.cos(angle))
    return turned


def feed_forward(w, x):
    a = silu(x @ w["ffn.gate_a.weight"].T) * (x @ w["ffn.up_a.weight"].T)
    a = a @ w["ffn.down_a.weight"].T
    b = gelu(x @ w["ffn.up_b.weight"].T) @ w["ffn.down_b.weight"].T
    alpha = sigmoid(np.concatenate([a, b], axis=-1) @ w["ffn.fusion.weight"].T)
    return alpha * a + (1 - alpha) * b


def split(x, size):
    return x.reshape(len(x), -1, size)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
