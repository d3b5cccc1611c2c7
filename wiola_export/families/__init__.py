"""The architectures that can be exported, one package each; torch lives here and in `trace`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from wiola_export.errors import CheckpointError, OptionError
from wiola_export.families import gcla, gsa, moment
from wiola_runtime.manifest import StateSpec

if TYPE_CHECKING:
    from wiola_export.families.layered import LayeredModel


class Config(Protocol):
    """What every family's configuration offers, whatever else it holds."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest context in tokens."""
        ...

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor of a checkpoint, by name."""
        ...

    def tied_copies(self) -> Mapping[str, str]:
        """Tensors that a checkpoint may hold besides, each with the one that it must equal."""
        ...

    def initial_values(self) -> Mapping[str, float]:
        """Tensors that training starts at one value; all others start at small normal noise."""
        ...

    def states(self) -> tuple[StateSpec, ...]:
        """State that a step reads and writes, in the growing layout (token axis "P")."""
        ...

    def reordered(self, name: str) -> tuple[int, tuple[int, ...]] | None:
        """Axis and indices of a tensor that the graph wants in another order, else None."""
        ...

    def to_json(self) -> Mapping[str, object]:
        """The `config.json` that describes this model."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture.

    Attributes:
        name: Short name, as the manifest gives it.
        marker_keys: Keys of `config.json` by which the family is told.
        parse_config: From `config.json` to the checked configuration.
        variants: Published sizes by name.
        build_model: From the configuration to the torch model; imports torch.
        turn_end: Token that ends a chat turn, where the family documents one.
        chat_roles: Token that begins a turn, by role, where the family documents them.
    """

    name: str
    marker_keys: frozenset[str]
    parse_config: Callable[[Mapping[str, object]], Any]
    variants: Mapping[str, Any]
    build_model: "Callable[[Any], LayeredModel]"
    turn_end: str | None
    chat_roles: Mapping[str, str] = dataclasses.field(default_factory=dict)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="gcla",
        marker_keys=gcla.MARKER_KEYS,
        parse_config=gcla.GclaConfig.from_json,
        variants=gcla.VARIANTS,
        build_model=gcla.build_model,
        turn_end=gcla.TURN_END,
        chat_roles=gcla.CHAT_ROLES,
    ),
    Family(
        name="gsa",
        marker_keys=gsa.MARKER_KEYS,
        parse_config=gsa.GsaConfig.from_json,
        variants=gsa.VARIANTS,
        build_model=gsa.build_model,
        turn_end=None,
    ),
    Family(
        name="moment",
        marker_keys=moment.MARKER_KEYS,
        parse_config=moment.MomentConfig.from_json,
        variants=moment.VARIANTS,
        build_model=moment.build_model,
        turn_end=None,
    ),
)


def detect(config: Mapping[str, object]) -> Family:
    """Tell the family of a checkpoint by the keys of its `config.json`.

    Raises:
        CheckpointError: The keys fit no family, or several.
    """
    fitting = [family for family in FAMILIES if family.marker_keys <= config.keys()]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = " and ".join(family.name for family in fitting)
        raise CheckpointError(
            f"config.json has the keys of the families {names}; expected those of one model"
        )
    wanted = "; ".join(f"{f.name}: {', '.join(sorted(f.marker_keys))}" for f in FAMILIES)
    raise CheckpointError(
        f"config.json (model_type {config.get('model_type')!r}) fits no known model family; "
        f"expected the keys of one of: {wanted}"
    )


def variant_names() -> tuple[str, ...]:
    """Names of all published sizes."""
    return tuple(name for family in FAMILIES for name in family.variants)


def find_variant(name: str) -> tuple[Family, Any]:
    """Return the family and the configuration of a published size.

    Raises:
        OptionError: No family has a size of that name.
    """
    for family in FAMILIES:
        if name in family.variants:
            return family, family.variants[name]
    raise OptionError(f"unknown variant {name!r}; expected one of {', '.join(variant_names())}")
