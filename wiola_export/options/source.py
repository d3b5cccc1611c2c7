"""Where the weights come from."""

import dataclasses
from pathlib import Path

from wiola_export.errors import OptionError

# Packaged checkpoints, each a folder of this package; the first holds the tokenizer of all.
DEMOS = ("demo", "demo-gsa", "demo-moment")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the weights come from.

    Attributes:
        variant: A published size, or a packaged checkpoint.
        checkpoint: A folder in the Hugging Face layout. Without one, a published size gets seeded
            random weights.
        seed: Seed of random weights.
    """

    variant: str | None = None
    checkpoint: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a source that names nothing, or two things."""
        if self.variant is None and self.checkpoint is None:
            raise OptionError("nothing to export; give --checkpoint DIR or --variant NAME")
        if self.variant in DEMOS and self.checkpoint is not None:
            raise OptionError(
                f"--variant {self.variant} is a checkpoint already; drop --checkpoint"
            )
        if self.seed < 0:
            raise OptionError(f"--seed is {self.seed}; expected 0 or more")
        if self.seed and not self.is_random:
            raise OptionError("--seed has no effect on a trained checkpoint")

    @property
    def is_random(self) -> bool:
        """Whether the weights will be random."""
        return self.checkpoint is None and self.variant not in DEMOS
