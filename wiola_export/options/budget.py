"""What an export may cost: bits, or accuracy; and the plan that says how it is spent."""

import dataclasses
from pathlib import Path

from wiola_export.errors import OptionError

FEWEST_BITS, MOST_BITS = 4.0, 32.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of an export; None sets none.

    Attributes:
        bits_per_weight: Of all matrices, scales and zero points included; tensors get the bits that
            cost least accuracy.
        max_kl: Largest mean divergence from the float model, in nats a token.
        max_ppl_ratio: Largest ratio of the perplexities.
        plan: A file that says how each tensor is stored, as an export writes it.
    """

    bits_per_weight: float | None = None
    max_kl: float | None = None
    max_ppl_ratio: float | None = None
    plan: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what is out of range or contradictory."""
        bits = self.bits_per_weight
        if bits is not None and not FEWEST_BITS <= bits <= MOST_BITS:
            raise OptionError(f"--bits-per-weight is {bits:g}; expected 4 to 32")
        if bits is not None and self.plan is not None:
            raise OptionError(
                "--bits-per-weight and --plan both say how tensors are stored; drop one"
            )
        if self.max_kl is not None and not self.max_kl > 0:
            raise OptionError(f"--max-kl is {self.max_kl:g}; expected more than 0")
        if self.max_ppl_ratio is not None and not self.max_ppl_ratio > 1:
            raise OptionError(f"--max-ppl-ratio is {self.max_ppl_ratio:g}; expected more than 1")

    @property
    def limits_accuracy(self) -> bool:
        """Whether an export that is less accurate than wanted is refused."""
        return self.max_kl is not None or self.max_ppl_ratio is not None

    @property
    def is_set(self) -> bool:
        """Whether any limit or plan is given."""
        return self != Budget()
