"""What can be exported by name, and what it will take: reckoned from shapes, nothing is opened."""

import dataclasses
import math
from collections.abc import Iterator

from wiola_export.families import FAMILIES, Config
from wiola_export.options import Quantization
from wiola_export.prepare import make_policy
from wiola_export.quantize.plan import stored_bytes
from wiola_export.quantize.policy import Policy, Role
from wiola_export.quantize.recipes import FLOAT_TYPES, Part
from wiola_runtime.manifest import Precision

FLOAT32_BYTES = 4
LISTED: tuple[Precision, ...] = ("fp32", "int8", "int4")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model that is known by name.

    Attributes:
        parameters: Numbers in its checkpoint; a tied head counts once.
        weight_bytes: Expected bytes of the weights of a CPU bundle, by precision. The graph, some
            hundred kilobytes, and the tokenizer come on top.
        cache_bytes: Keys and values of one full context in float32; half in float16 (CUDA), a
            quarter with an int8 cache.
        sum_bytes: Running sums of one context, which do not grow; always float32.
    """

    family: str
    variant: str
    parameters: int
    context_length: int
    weight_bytes: dict[Precision, int]
    cache_bytes: int
    sum_bytes: int


def entries() -> Iterator[Entry]:
    """Yield every published size of every family."""
    for family in FAMILIES:
        for variant, config in family.variants.items():
            yield entry(family.name, variant, config)


def entry(family: str, variant: str, config: Config) -> Entry:
    """Reckon what a model takes."""
    shapes = config.tensor_shapes().values()
    return Entry(
        family=family,
        variant=variant,
        parameters=sum(map(math.prod, shapes)),
        context_length=config.max_position_embeddings,
        weight_bytes={precision: weight_bytes(config, precision) for precision in LISTED},
        cache_bytes=_state_bytes(config, "cache"),
        sum_bytes=_state_bytes(config, "sum"),
    )


def weight_bytes(config: Config, precision: Precision) -> int:
    """Return the bytes of all weights of a CPU bundle as the precision's defaults store them."""
    policy = make_policy(Quantization(precision=precision), "cpu")
    shapes = config.tensor_shapes().items()
    return sum(_tensor_bytes(policy, name, shape, config.vocab_size) for name, shape in shapes)


def _tensor_bytes(policy: Policy, name: str, shape: tuple[int, ...], vocab_size: int) -> int:
    if len(shape) != 2:  # noqa: PLR2004  a norm, a bias or a single number
        return Part(FLOAT_TYPES[policy.floats], shape).size_bytes
    role: Role = "embedding" if shape[0] == vocab_size else "matrix"
    return stored_bytes(shape, policy.decide(role, shape[1], name).form)


def _state_bytes(config: Config, kind: str) -> int:
    lengths = {"B": 1, "P": config.max_position_embeddings}
    states = (state for state in config.states() if state.kind == kind)
    return FLOAT32_BYTES * sum(
        math.prod(lengths[axis] if isinstance(axis, str) else axis for axis in state.axes)
        for state in states
    )
