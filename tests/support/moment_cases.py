"""Random checkpoints of the `moment` family, and what its description makes of them.

Weights are scaled so that every part matters: variances are of the size of the constant that they
are divided by, gains are far from one. Each row begins with a token twice, so that there is a
variance of zero behind the first position as well.

Axes: B batch, T positions, V vocabulary.
"""

import functools
import zlib

import numpy as np
from support import paper_moment

from wiola_export.families.moment import MomentConfig

NEW_TOKENS, PROMPT_TOKENS = 24, 9
CONFIGS = {
    "moment_odd": MomentConfig(
        vocab_size=320,
        hidden_size=60,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=50,
        difference_size=10,
        max_position_embeddings=128,
    ),
    "moment_deep": MomentConfig(
        vocab_size=331,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=128,
        variance_scale=0.3,
        rope_theta=500.0,
    ),
    "moment_tied": MomentConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=1,
        intermediate_size=72,
        max_position_embeddings=128,
        rms_norm_eps=1e-4,
        unit_norm_eps=1e-3,
        variance_eps=1e-2,
        tie_word_embeddings=True,
    ),
}


@functools.cache
def weights(name: str) -> dict[str, np.ndarray]:
    """Draw the tensors of a case."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    found = {}
    for tensor, shape in CONFIGS[name].tensor_shapes().items():
        noise = generator.standard_normal(shape)
        values = 1 + 0.3 * noise if len(shape) == 1 else noise * 1.2 / np.sqrt(shape[-1])
        found[tensor] = values.astype(np.float32)
    return found


@functools.cache
def input_ids(name: str) -> np.ndarray:
    """Draw token ids (2, 48)."""
    generator = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    ids = generator.integers(3, CONFIGS[name].vocab_size, (2, 48))
    ids[:, 1] = ids[:, 0]
    return ids


@functools.cache
def logits(name: str) -> np.ndarray:
    """Return the logits (2, 48, V) that the description gives, in float64."""
    config = CONFIGS[name]
    return np.stack([paper_moment.logits(config, weights(name), row) for row in input_ids(name)])


@functools.cache
def greedy_ids(name: str) -> np.ndarray:
    """Continue the first row's prompt with the most likely tokens."""
    ids = list(input_ids(name)[0, :PROMPT_TOKENS])
    for _ in range(NEW_TOKENS):
        ids.append(paper_moment.logits(CONFIGS[name], weights(name), np.array(ids))[-1].argmax())
    return np.array(ids)
