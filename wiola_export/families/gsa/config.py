"""Configuration, published sizes, tensors and state of the `gsa` family.

The published package is the reference (`wiola13m` 1.0.1); its paper is arXiv 2608.14604.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

from wiola_export.errors import CheckpointError
from wiola_export.families import reading
from wiola_runtime.manifest import StateKind, StateSpec

MARKER_KEYS = frozenset({"spiral_alpha", "intermediate_size"})
PREFIXES = ("spiral_", "gate_", "use_attention_", "rope_")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GsaConfig:
    """Shape of a `gsa` model, under the names of its `config.json`.

    Attributes:
        spiral_alpha: How far the frequencies of the rotation are spread; 0 is plain rotary.
        use_attention_gate: Whether each head's queries are scaled by what came before.
        gate_pre_rope: Whether the gate reads the queries before they are rotated.
    """

    vocab_size: int = 32_000
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    spiral_alpha: float = 0.05
    use_attention_gate: bool = True
    gate_pre_rope: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 1
    eos_token_id: int | None = 2
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be divided into heads, and frequencies that are none."""
        if self.hidden_size % self.num_attention_heads:
            raise CheckpointError(
                f"config.json: hidden_size {self.hidden_size} is no multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"config.json: head size {self.head_dim} is odd; the rotation needs pairs"
            )
        for key in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, key)
            if value <= 0:
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
        reading.refuse_unknown(raw, {field.name for field in dataclasses.fields(cls)}, PREFIXES)
        vocab_size = reading.read_int(raw, "vocab_size")
        config = cls(
            vocab_size=vocab_size,
            hidden_size=reading.read_int(raw, "hidden_size"),
            intermediate_size=reading.read_int(raw, "intermediate_size"),
            num_hidden_layers=reading.read_int(raw, "num_hidden_layers", most=1024),
            num_attention_heads=reading.read_int(raw, "num_attention_heads"),
            max_position_embeddings=reading.read_int(raw, "max_position_embeddings"),
            rms_norm_eps=reading.read_float(raw, "rms_norm_eps", 1e-6),
            rope_theta=reading.read_float(raw, "rope_theta", 10_000.0),
            spiral_alpha=reading.read_float(raw, "spiral_alpha"),
            use_attention_gate=reading.read_flag(raw, "use_attention_gate", default=True),
            gate_pre_rope=reading.read_flag(raw, "gate_pre_rope", default=True),
            tie_word_embeddings=reading.read_flag(raw, "tie_word_embeddings", default=True),
            bos_token_id=reading.read_token_id(raw, "bos_token_id", vocab_size),
            eos_token_id=None,  # may be a list; the tokenizer files collect every end token
            pad_token_id=reading.read_token_id(raw, "pad_token_id", vocab_size),
        )
        reading.refuse_other_head_size(raw, config.head_dim)
        return config

    def to_json(self) -> Mapping[str, object]:
        """Return the `config.json` of this model."""
        return {
            "architectures": ["WiolaForCausalLM"],
            "model_type": "wiola",
            **dataclasses.asdict(self),
        }

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor of a checkpoint; matrices are (out, in)."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        layer = self._layer_shapes()
        for index in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner, heads = self.hidden_size, self.intermediate_size, self.num_attention_heads
        gate: dict[str, tuple[int, ...]] = {
            "self_attn.gate_fc1.weight": (heads, self.head_dim),
            "self_attn.gate_fc2.weight": (heads, heads),
            "self_attn.gate_fc2.bias": (heads,),
        }
        return {
            "input_layernorm.weight": (hidden,),
            **{f"self_attn.{name}_proj.weight": (hidden, hidden) for name in ("q", "k", "v", "o")},
            **(gate if self.use_attention_gate else {}),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.up_proj.weight": (2 * inner, hidden),
            "mlp.bypass_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }

    def tied_copies(self) -> Mapping[str, str]:
        """Return `lm_head.weight` for a tied model: some writers store the alias as well."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.tie_word_embeddings else {}

    def initial_values(self) -> Mapping[str, float]:
        """Return the tensors that training starts at one value, as the package does."""
        starts = {"norm.weight": 1.0, "gate_fc2.bias": 0.0}
        return {
            name: value
            for name in self.tensor_shapes()
            for end, value in starts.items()
            if name.endswith(end)
        }

    def states(self) -> tuple[StateSpec, ...]:
        """Return key, value and, where there is a gate, the sum of the mean queries of a layer."""
        cache: Axes = ("B", self.num_attention_heads, "P", self.head_dim)
        specs: list[StateSpec] = []
        for layer in range(self.num_hidden_layers):
            past, present = f"past_key_values.{layer}", f"present.{layer}"
            specs.append(_state(f"{past}.key", f"{present}.key", "cache", cache))
            specs.append(_state(f"{past}.value", f"{present}.value", "cache", cache))
            if self.use_attention_gate:
                names = f"past_summary.{layer}", f"present_summary.{layer}"
                specs.append(_state(*names, "sum", ("B", self.head_dim)))
        return tuple(specs)

    def reordered(self, name: str) -> None:
        """Return None: the graph wants every tensor as it is stored."""


Axes = tuple[str | int, ...]


def _state(past: str, present: str, kind: StateKind, axes: Axes) -> StateSpec:
    return StateSpec(past=past, present=present, kind=kind, dtype="float32", axes=axes)


def _published(hidden: int, layers: int, heads: int) -> GsaConfig:
    return GsaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
    )


VARIANTS: Mapping[str, GsaConfig] = {
    "nano": _published(256, 6, 8),
    "micro": _published(384, 8, 12),
    "small": _published(512, 12, 16),
}
