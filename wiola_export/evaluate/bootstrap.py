"""How far a figure may be off because the text is one of many: a bootstrap over windows.

Axes: W windows, S resamples, F figures.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_export.errors import EvaluationError

RESAMPLES = 2000
SEED = 0
CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054  # of (1 + CONFIDENCE) / 2
# Predictions of one window depend on one another, so windows are what is drawn again. Fewer than
# these say too little about how windows differ.
FEWEST_WINDOWS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Where the true value lies with 95 % confidence."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise EvaluationError(
                f"an interval from {self.low} to {self.high} holds nothing; "
                "the low end must not be above the high one"
            )

    def holds(self, value: float) -> bool:
        """Tell whether a value lies inside, the ends included."""
        return self.low <= value <= self.high


def resampled_means(figures: NDArray[np.float64], groups: Sequence[int]) -> NDArray[np.float64]:
    """Draw windows again and return the mean of each resample, (S, F).

    All figures (W, F) of a window are drawn together, so their differences are paired.

    Args:
        figures: Mean of every figure in every window.
        groups: Windows of each text, in order. Each text keeps its count, as it did when the
            windows were cut.
    """
    generator = np.random.default_rng(SEED)
    counts = [generator.multinomial(n, np.full(n, 1 / n), RESAMPLES) for n in groups]
    shares = np.concatenate(counts, axis=1) / len(figures)
    means: NDArray[np.float64] = shares @ figures
    return means


def interval(means: NDArray[np.float64], windows: int) -> Interval | None:
    """Return the interval of one figure from its resampled means (S,).

    The percentiles are expanded to those of Student's t and the unbiased variance: plain ones
    are too narrow for few windows (Hesterberg 2015, "What teachers should know about the
    bootstrap"). None where there are too few windows.
    """
    if windows < FEWEST_WINDOWS:
        return None
    tail = tail_share(windows)
    low, high = np.quantile(means, (tail, 1 - tail))
    return Interval(float(low), float(high))


def tail_share(windows: int) -> float:
    """Return the share of resamples to leave out at each end."""
    quantile = student_quantile(windows - 1) * math.sqrt(windows / (windows - 1))
    return math.erfc(quantile / math.sqrt(2)) / 2


def student_quantile(freedom: int) -> float:
    """Return the quantile of Student's t for `CONFIDENCE`, two-sided.

    Expansion of Cornish and Fisher in 1 / freedom; off by less than 0.001 from 7 degrees on.
    """
    z = NORMAL_QUANTILE
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))
