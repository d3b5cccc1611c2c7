"""Configuration, published size, tensors and state of the `moment` family.

No checkpoint, configuration or code of this architecture is public; the description of it is the
reference, and the layout of a checkpoint is ours. `config.json` has `"model_type": "moment"` and
the fields of `MomentConfig`; the family is told by `variance_scale` and `difference_size`.
Tensors, d hidden size, w intermediate size, n difference size, matrices (out, in):

    model.embed_tokens.weight (V, d)      model.final_norm.weight (d)      lm_head.weight (V, d)
    model.layers.{l}.
        input_norm.weight (d)             attn.{q,k,v,gate,o}_proj.weight (d, d)
        post_attn_norm.weight (d)         ffn.base_proj.weight (2w, d): gate rows, then up rows
        ffn.variance_proj.weight (2w, d + 1): the directions, then the magnitude
        ffn.down_proj.weight (d, w)
        ffn.differences.{q,k_a,k_f}_proj.weight (n, d)        not in layer 0; a is what attention
        ffn.differences.{a,f}_proj.weight (2w, d)             changed, f what feed-forward did
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

from wiola_export.errors import CheckpointError
from wiola_export.families import reading
from wiola_runtime.manifest import StateSpec

MARKER_KEYS = frozenset({"variance_scale", "difference_size"})
PREFIXES = ("variance_", "difference_", "unit_norm_", "rope_", "num_key_value_heads")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MomentConfig:
    """Shape of a `moment` model, under the names of its `config.json`.

    Attributes:
        rms_norm_eps: Of the norms with a learned gain.
        unit_norm_eps: Of S(x) = x / sqrt(mean(x²) + eps), which has no gain.
        variance_scale: What variances are divided by before their logarithm.
        variance_eps: Of the direction and the magnitude of the variance features.
        difference_size: Features of the query and the keys that weigh the two differences.
    """

    vocab_size: int = 16_384
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 2048
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    unit_norm_eps: float = 1e-6
    variance_scale: float = 0.1
    variance_eps: float = 1e-6
    difference_size: int = 16
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be divided into heads, and constants out of range."""
        if self.hidden_size % self.num_attention_heads:
            raise CheckpointError(
                f"config.json: hidden_size {self.hidden_size} is no multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"config.json: head size {self.head_dim} is odd; the rotation needs pairs"
            )
        for key in (
            "rope_theta",
            "rms_norm_eps",
            "unit_norm_eps",
            "variance_scale",
            "variance_eps",
        ):
            if getattr(self, key) <= 0:
                value = getattr(self, key)
                raise CheckpointError(f"config.json: {key} is {value}; expected more than 0")

    @property
    def head_dim(self) -> int:
        """Size of one head, D = d / H."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> Self:
        """Read the fields of a `config.json`.

        Raises:
            CheckpointError: A field is missing, out of range, or changes inference unknown to us.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        reading.refuse_unknown(raw, known, PREFIXES)
        vocab_size = reading.read_int(raw, "vocab_size")
        config = cls(
            vocab_size=vocab_size,
            hidden_size=reading.read_int(raw, "hidden_size"),
            num_hidden_layers=reading.read_int(raw, "num_hidden_layers", most=1024),
            num_attention_heads=reading.read_int(raw, "num_attention_heads"),
            intermediate_size=reading.read_int(raw, "intermediate_size"),
            max_position_embeddings=reading.read_int(raw, "max_position_embeddings"),
            rope_theta=reading.read_float(raw, "rope_theta", 10_000.0),
            rms_norm_eps=reading.read_float(raw, "rms_norm_eps", 1e-6),
            unit_norm_eps=reading.read_float(raw, "unit_norm_eps", 1e-6),
            variance_scale=reading.read_float(raw, "variance_scale"),
            variance_eps=reading.read_float(raw, "variance_eps", 1e-6),
            difference_size=reading.read_int(raw, "difference_size"),
            tie_word_embeddings=reading.read_flag(raw, "tie_word_embeddings", default=False),
            bos_token_id=reading.read_token_id(raw, "bos_token_id", vocab_size),
            eos_token_id=None,  # may be a list; the tokenizer files collect every end token
            pad_token_id=reading.read_token_id(raw, "pad_token_id", vocab_size),
        )
        reading.refuse_other_head_size(raw, config.head_dim)
        return config

    def to_json(self) -> Mapping[str, object]:
        """Return the `config.json` of this model."""
        return {"model_type": "moment", **dataclasses.asdict(self)}

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor of a checkpoint; matrices are (out, in)."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.final_norm.weight": (hidden,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        for index in range(self.num_hidden_layers):
            layer = self._layer_shapes(routed=index > 0)
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
        return shapes

    def _layer_shapes(self, *, routed: bool) -> dict[str, tuple[int, ...]]:
        hidden, wide = self.hidden_size, 2 * self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            "input_norm.weight": (hidden,),
            "post_attn_norm.weight": (hidden,),
            "ffn.base_proj.weight": (wide, hidden),
            "ffn.variance_proj.weight": (wide, hidden + 1),
            "ffn.down_proj.weight": (hidden, self.intermediate_size),
        }
        shapes |= {f"attn.{name}_proj.weight": (hidden, hidden) for name in ("q", "k", "v", "o")}
        shapes["attn.gate_proj.weight"] = (hidden, hidden)
        if routed:
            small, prefix = (self.difference_size, hidden), "ffn.differences"
            shapes |= {f"{prefix}.{name}_proj.weight": small for name in ("q", "k_a", "k_f")}
            shapes |= {f"{prefix}.{name}_proj.weight": (wide, hidden) for name in ("a", "f")}
        return shapes

    def tied_copies(self) -> Mapping[str, str]:
        """Return `lm_head.weight` for a tied model: some writers store the alias as well."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.tie_word_embeddings else {}

    def initial_values(self) -> Mapping[str, float]:
        """Return the gains of the norms, which training starts at one."""
        return {name: 1.0 for name in self.tensor_shapes() if name.endswith("norm.weight")}

    def states(self) -> tuple[StateSpec, ...]:
        """Return the key and value caches of each layer."""
        axes = ("B", self.num_attention_heads, "P", self.head_dim)
        return tuple(
            StateSpec(
                past=f"past_key_values.{layer}.{name}",
                present=f"present.{layer}.{name}",
                kind="cache",
                dtype="float32",
                axes=axes,
            )
            for layer in range(self.num_hidden_layers)
            for name in ("key", "value")
        )

    def reordered(self, name: str) -> tuple[int, tuple[int, ...]] | None:  # noqa: ARG002  Config's
        """Return None: the graph wants every tensor as it is."""
        return None


VARIANTS: Mapping[str, MomentConfig] = {
    "moment-27m": MomentConfig(
        hidden_size=256, num_hidden_layers=8, num_attention_heads=8, intermediate_size=896
    ),
}
