"""Find the model that is to be exported: a checkpoint, a demo, or random weights of a size."""

import dataclasses
import re
from importlib import resources
from pathlib import Path

from wiola_export.checkpoint import Checkpoint, TokenizerFiles, open_checkpoint
from wiola_export.errors import CheckpointError, OptionError
from wiola_export.families import Config, Family, detect, find_variant, variant_names
from wiola_export.options import DEMOS, Source
from wiola_export.weights import RandomSource, StoredWeight, WeightSource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that can be exported; nothing big is in memory.

    Attributes:
        name: For file and display names.
        variant: Published size, or packaged checkpoint.
        checkpoint: None for random weights.
        seed: None for a checkpoint.
    """

    name: str
    variant: str | None
    family: Family
    config: Config
    weights: WeightSource
    tokenizer: TokenizerFiles
    checkpoint: Checkpoint | None
    seed: int | None

    def weight(self, name: str) -> StoredWeight:
        """Return a tensor of the checkpoint, its heads in the order of the graph, unread."""
        shape = self.config.tensor_shapes()[name]
        return StoredWeight(self.weights, name, shape, self.config.reordered(name))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should see before the export goes on."""
        return self.checkpoint.warnings if self.checkpoint else ()


def find_model(source: Source) -> Model:
    """Open what a source names and check it against its config.

    Raises:
        CheckpointError: The checkpoint is not what it says.
        OptionError: There is no such variant, or the checkpoint is of another one.
    """
    known = (*variant_names(), *DEMOS)
    if source.variant not in (None, *known):
        names = ", ".join(known)
        raise OptionError(f"unknown variant {source.variant!r}; expected one of {names}")
    if source.variant in DEMOS:
        return _packaged(source.variant)
    if source.checkpoint is not None:
        return _from_user(source.checkpoint, source.variant)
    assert source.variant is not None
    return _random(source.variant, source.seed)


def demo_folder(name: str = DEMOS[0]) -> Path:
    """Return the folder of a packaged checkpoint."""
    return Path(str(resources.files("wiola_export") / name))


def _packaged(name: str) -> Model:
    checkpoint = open_checkpoint(demo_folder(name), tokenizer_folder=demo_folder())
    return _from_checkpoint(checkpoint, name, name)


def _from_user(folder: Path, variant: str | None) -> Model:
    model = _from_checkpoint(open_checkpoint(folder), folder.resolve().name, None)
    sizes = model.family.variants
    found = next((n for n in sizes if _same_shape(sizes[n], model.config)), None)
    if variant not in (None, found):
        raise OptionError(
            f"--checkpoint {folder} is not of variant {variant} but of "
            f"{found or 'a size of its own'}; drop --variant"
        )
    return dataclasses.replace(model, variant=found)


def _from_checkpoint(checkpoint: Checkpoint, name: str, variant: str | None) -> Model:
    family = detect(checkpoint.config)
    config: Config = family.parse_config(checkpoint.config)
    checkpoint.check(config.tensor_shapes(), config.tied_copies().keys())
    for copy, original in config.tied_copies().items():
        checkpoint.check_tied(copy, original)
    return Model(
        name=_file_name(name) or family.name,
        variant=variant,
        family=family,
        config=config,
        weights=checkpoint,
        tokenizer=checkpoint.tokenizer,
        checkpoint=checkpoint,
        seed=None,
    )


def _random(variant: str, seed: int) -> Model:
    family, config = find_variant(variant)
    tokenizer = open_checkpoint(demo_folder()).tokenizer
    if max(tokenizer.vocabulary.values()) >= config.vocab_size:
        raise CheckpointError(f"variant {variant} has fewer tokens than the demo's tokenizer")
    return Model(
        name=variant,
        variant=variant,
        family=family,
        config=config,
        weights=RandomSource(config.tensor_shapes(), config.initial_values(), seed),
        tokenizer=tokenizer,
        checkpoint=None,
        seed=seed,
    )


def _file_name(name: str) -> str:
    """Make a name that needs no quotes in a shell: `My Model` becomes `my-model`."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")


def _same_shape(one: Config, other: Config) -> bool:
    return one.tensor_shapes() == other.tensor_shapes()
