"""Configuration, published sizes, tensors and state of the `gcla` family.

The published package is the reference (`wiola` 0.1.1); its paper is arXiv 2607.01394.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal, Self, cast

from wiola_export.errors import CheckpointError
from wiola_export.families import reading
from wiola_runtime.manifest import StateKind, StateSpec

MARKER_KEYS = frozenset({"gcla_lookback", "dsff_narrow_size", "dsff_wide_size"})
TURN_END = "<|end|>"
CHAT_ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
TRAINING_KEYS = frozenset({"gcla_gate_init"})

Grouping = Literal["blocked", "interleaved"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GclaConfig:
    """Shape of a `gcla` model, under the names of its `config.json`.

    Attributes:
        gqa_grouping: Which key/value group a query head reads: `blocked` (the package: head h
            reads group h // (H/K)) or `interleaved` (the paper: h mod K).
    """

    vocab_size: int = 32_000
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    dsff_narrow_size: int
    dsff_wide_size: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    gcla_lookback: int = 2
    srpe_theta: float = 10_000.0
    srpe_spiral_divisor: float = 8.0
    srpe_radial_amplitude: float = 0.1
    srpe_radial_frequency: float = 0.01
    tie_word_embeddings: bool = True
    gqa_grouping: Grouping = "blocked"
    bos_token_id: int | None = 1
    eos_token_id: int | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be divided into heads."""
        for whole, part in (
            ("hidden_size", "num_attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
        ):
            if getattr(self, whole) % getattr(self, part):
                raise CheckpointError(
                    f"config.json: {whole} {getattr(self, whole)} is no multiple of "
                    f"{part} {getattr(self, part)}"
                )
        if self.head_dim % 2:
            raise CheckpointError(
                f"config.json: head size {self.head_dim} is odd; the rotation needs pairs"
            )
        for key in ("srpe_spiral_divisor", "srpe_theta", "rms_norm_eps"):
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
        known = {field.name for field in dataclasses.fields(cls)} | TRAINING_KEYS
        reading.refuse_unknown(raw, known, ("gcla_", "gqa_", "dsff_", "srpe_", "rope_"))
        vocab_size = reading.read_int(raw, "vocab_size")
        config = cls(
            vocab_size=vocab_size,
            hidden_size=reading.read_int(raw, "hidden_size"),
            num_hidden_layers=reading.read_int(raw, "num_hidden_layers", most=1024),
            num_attention_heads=reading.read_int(raw, "num_attention_heads"),
            num_key_value_heads=reading.read_int(raw, "num_key_value_heads"),
            dsff_narrow_size=reading.read_int(raw, "dsff_narrow_size"),
            dsff_wide_size=reading.read_int(raw, "dsff_wide_size"),
            max_position_embeddings=reading.read_int(raw, "max_position_embeddings"),
            rms_norm_eps=reading.read_float(raw, "rms_norm_eps", 1e-6),
            gcla_lookback=reading.read_int(raw, "gcla_lookback"),
            srpe_theta=reading.read_float(raw, "srpe_theta", 10_000.0),
            srpe_spiral_divisor=reading.read_float(raw, "srpe_spiral_divisor", 8.0),
            srpe_radial_amplitude=reading.read_float(raw, "srpe_radial_amplitude", 0.1),
            srpe_radial_frequency=reading.read_float(raw, "srpe_radial_frequency", 0.01),
            tie_word_embeddings=reading.read_flag(raw, "tie_word_embeddings", default=True),
            gqa_grouping=cast(
                "Grouping",
                reading.read_choice(raw, "gqa_grouping", ("blocked", "interleaved"), "blocked"),
            ),
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
            "atm_enabled": False,
            **dataclasses.asdict(self),
        }

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor of a checkpoint; matrices are (out, in)."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.final_norm.weight": (hidden,),
            "model.final_norm.offset": (hidden,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        layer = self._layer_shapes()
        for index in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, narrow, wide = self.hidden_size, self.dsff_narrow_size, self.dsff_wide_size
        grouped = self.num_key_value_heads * self.head_dim
        return {
            "input_norm.weight": (hidden,),
            "input_norm.offset": (hidden,),
            "attn.q_proj.weight": (hidden, hidden),
            "attn.k_proj.weight": (grouped, hidden),
            "attn.v_proj.weight": (grouped, hidden),
            "attn.o_proj.weight": (hidden, hidden),
            "attn.gate_proj.weight": (hidden, hidden),
            "attn.k_ctx_proj.weight": (grouped, hidden),
            "attn.v_ctx_proj.weight": (grouped, hidden),
            "attn.blend_logit": (),
            "post_attn_norm.weight": (hidden,),
            "post_attn_norm.offset": (hidden,),
            "ffn.gate_a.weight": (narrow, hidden),
            "ffn.up_a.weight": (narrow, hidden),
            "ffn.down_a.weight": (hidden, narrow),
            "ffn.up_b.weight": (wide, hidden),
            "ffn.down_b.weight": (hidden, wide),
            "ffn.fusion.weight": (hidden, 2 * hidden),
        }

    def tied_copies(self) -> Mapping[str, str]:
        """Return `lm_head.weight` for a tied model: some writers store the alias as well."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.tie_word_embeddings else {}

    def initial_values(self) -> Mapping[str, float]:
        """Return the tensors that training starts at one value, as the package does."""
        starts = {"norm.weight": 1.0, "norm.offset": 0.0, "blend_logit": -3.0}
        return {
            name: value
            for name in self.tensor_shapes()
            for end, value in starts.items()
            if name.endswith(end)
        }

    def states(self) -> tuple[StateSpec, ...]:
        """Return key, value and running sum of each layer; the last layer's sum is never read."""
        grouped: Axes = ("B", self.num_key_value_heads, "P", self.head_dim)
        specs: list[StateSpec] = []
        for layer in range(self.num_hidden_layers):
            past, present = f"past_key_values.{layer}", f"present.{layer}"
            specs.append(_state(f"{past}.key", f"{present}.key", "cache", grouped))
            specs.append(_state(f"{past}.value", f"{present}.value", "cache", grouped))
            if layer < self.num_hidden_layers - 1:
                names = f"past_summary.{layer}", f"present_summary.{layer}"
                specs.append(_state(*names, "sum", ("B", self.hidden_size)))
        return tuple(specs)

    def reordered(self, name: str) -> tuple[int, tuple[int, ...]] | None:
        """Return (axis, indices) of a tensor whose heads the graph wants in another order.

        The graph knows blocked groups only; an interleaved checkpoint is the same model with its
        heads permuted.
        """
        axis = {"q_proj": 0, "gate_proj": 0, "o_proj": 1}.get(name.split(".")[-2])
        if self.gqa_grouping == "blocked" or axis is None or ".attn." not in name:
            return None
        groups, size = self.num_key_value_heads, self.head_dim
        per_group = self.num_attention_heads // groups
        heads = (j * groups + g for g in range(groups) for j in range(per_group))
        return axis, tuple(h * size + i for h in heads for i in range(size))


Axes = tuple[str | int, ...]


def _state(past: str, present: str, kind: StateKind, axes: Axes) -> StateSpec:
    return StateSpec(past=past, present=present, kind=kind, dtype="float32", axes=axes)


def _published(hidden: int, layers: int, heads: int, groups: int) -> GclaConfig:
    return GclaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        dsff_narrow_size=hidden,
        dsff_wide_size=4 * hidden,
    )


VARIANTS: Mapping[str, GclaConfig] = {
    "120m": _published(768, 12, 12, 4),
    "360m": _published(1024, 16, 16, 4),
    "700m": _published(1536, 24, 16, 8),
    "1.5b": _published(2048, 28, 16, 8),
}
