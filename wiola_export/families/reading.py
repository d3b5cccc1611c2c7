"""Read typed values out of a `config.json`, naming the key that is wrong."""

import math
from collections.abc import Collection, Mapping

from wiola_export.errors import CheckpointError

# Keys of other architectures that change what a model computes. A checkpoint of ours has none
# of them; one that sets them to something else than "off" is not the model that we would export.
FOREIGN_KEYS = frozenset({
    "alibi", "attention_bias", "attn_logit_softcapping", "final_logit_softcapping", "hidden_act",
    "layer_types", "logit_scale", "mlp_bias", "moe_intermediate_size", "num_experts",
    "num_local_experts", "partial_rotary_factor", "qk_norm", "rope_scaling", "sliding_window",
    "use_sliding_window",
})  # fmt: skip
# No size of a model that fits a small machine is larger; what is, would exhaust memory later.
MOST = 1 << 20
OFF: tuple[object, ...] = (None, False, 0, [], {})


def read_int(
    config: Mapping[str, object], key: str, default: int | None = None, *, most: int = MOST
) -> int:
    """Read a positive integer, at most `most`.

    Raises:
        CheckpointError: The key is absent and has no default, or its value is no such number.
    """
    value = _read(config, key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"config.json: {key} is {value!r}; expected a positive integer")
    if value > most:
        raise CheckpointError(f"config.json: {key} is {value}; expected at most {most}")
    return value


def read_float(config: Mapping[str, object], key: str, default: float | None = None) -> float:
    """Read a finite number.

    Raises:
        CheckpointError: The key is absent and has no default, or its value is no such number.
    """
    value = _read(config, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CheckpointError(f"config.json: {key} is {value!r}; expected a finite number")
    return float(value)


def read_flag(config: Mapping[str, object], key: str, *, default: bool) -> bool:
    """Read true or false; null means the default.

    Raises:
        CheckpointError: The value is neither.
    """
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {key} is {value!r}; expected true or false")
    return value


def read_choice(
    config: Mapping[str, object], key: str, choices: tuple[str, ...], default: str
) -> str:
    """Read one of several words.

    Raises:
        CheckpointError: The value is none of them.
    """
    value = config.get(key, default)
    if value not in choices:
        raise CheckpointError(
            f"config.json: {key} is {value!r}; expected {' or '.join(map(repr, choices))}"
        )
    return str(value)


def read_token_id(config: Mapping[str, object], key: str, vocab_size: int) -> int | None:
    """Read a token id that the vocabulary must hold; null or absent means none.

    Raises:
        CheckpointError: The value is no id of the vocabulary.
    """
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise CheckpointError(
            f"config.json: {key} is {value!r}; expected a token id below vocab_size {vocab_size}"
        )
    return value


def refuse_unknown(
    config: Mapping[str, object], known: Collection[str], prefixes: tuple[str, ...]
) -> None:
    """Refuse keys that change inference and that this family does not know.

    Keys in the family's own namespaces (`prefixes`) and switches of other architectures count;
    everything else (training settings, bookkeeping of transformers) is ignored.

    Raises:
        CheckpointError: Such a key is set.
    """
    for key, value in config.items():
        foreign = key in FOREIGN_KEYS and value not in OFF
        if key not in known and (foreign or key.startswith(prefixes)):
            raise CheckpointError(
                f"config.json: {key} = {value!r} changes what the model computes and is not "
                "supported; export a checkpoint of the published architecture"
            )


def refuse_other_head_size(config: Mapping[str, object], size: int) -> None:
    """Refuse a head size of its own: ours is the hidden size divided by the heads.

    Raises:
        CheckpointError: `head_dim` is there and differs.
    """
    if config.get("head_dim") not in (None, size):
        raise CheckpointError(
            f"config.json: head_dim {config['head_dim']} is not hidden_size / "
            f"num_attention_heads = {size}"
        )


def _read(config: Mapping[str, object], key: str, default: float | None) -> object:
    value = config.get(key, default)
    if value is None:
        raise CheckpointError(f"config.json: {key} is missing; is this a Wiola checkpoint?")
    return value
