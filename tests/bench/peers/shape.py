"""A Llama of as many matmul parameters as a Wiola model, which other engines can run."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tied Llama."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    context_length: int

    @property
    def head_size(self):
        return self.hidden_size // self.num_attention_heads

    @property
    def matmul_parameters(self):
        hidden, groups = self.hidden_size, self.num_key_value_heads * self.head_size
        layer = 2 * hidden * hidden + 2 * hidden * groups + 3 * hidden * self.intermediate_size
        return self.num_hidden_layers * layer + hidden * self.vocab_size


def shape_like(variant, multiple=256):
    """Widen the feed-forward layers until the parameters are those of a Wiola variant.

    `multiple` is what the blocks of 4-bit formats divide.
    """
    from wiola_export.families import FAMILIES

    config = next(f.variants[variant] for f in FAMILIES if variant in f.variants)
    matrices = [s for s in config.tensor_shapes().values() if len(s) == 2]
    wanted = sum(map(math.prod, matrices))
    thin = Shape(
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        intermediate_size=0,
        vocab_size=config.vocab_size,
        context_length=2048,
    )
    a_column = 3 * config.hidden_size * config.num_hidden_layers
    columns = (wanted - thin.matmul_parameters) / a_column
    return dataclasses.replace(thin, intermediate_size=round(columns / multiple) * multiple)
