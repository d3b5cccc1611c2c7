"""What a candidate lost against its reference, in the figures that a report gives.

Axes: W windows, N predictions of a window.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.bootstrap import Interval, interval, resampled_means
from wiola_export.evaluate.divergence import Scalars, TokenScores

MAX_MEAN_NATS = 700.0  # e to this power is about the largest float
POSITION_BINS = 16
# Borders of the histogram of divergences: four to each power of ten.
HISTOGRAM_DECADES = (-8, 2)
BINS_PER_DECADE = 4
CHANGE_PERCENTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Kullback-Leibler divergence KL(reference || candidate) over all tokens, in nats.

    Attributes:
        histogram: Tokens between consecutive borders of `histogram_borders`; the first counts
            everything below the second border, the last everything from the last but one on.
    """

    mean: float
    median: float
    p90: float
    p99: float
    p999: float
    max: float
    histogram: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbabilityChange:
    """Probability of the text's next token under the candidate less that under the reference."""

    mean: float
    rms: float
    p1: float
    p10: float
    median: float
    p90: float
    p99: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PositionBin:
    """Predictions after `start` to `stop` - 1 earlier tokens of their window, of all windows."""

    start: int
    stop: int
    top1_agreement: float
    kl_nats: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """95 % confidence intervals of the figures of the same names; None from too few windows."""

    reference_ppl: Interval | None
    candidate_ppl: Interval | None
    ppl_ratio: Interval | None
    kl_nats: Interval | None
    top1_agreement: Interval | None
    top5_agreement: Interval | None
    probability_change: Interval | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What a candidate lost against its reference.

    Attributes:
        reference_ppl: Perplexity of the text under the reference.
        candidate_ppl: Perplexity of the text under the candidate.
        top1_agreement: Share of predictions with the same likeliest token, 0 to 1.
        top5_agreement: Mean share of the reference's five likeliest tokens that are among the
            candidate's.
        tokens: Predictions that were compared: windows * (context - 1).
        context: Tokens of a window; each is scored with nothing before it.
    """

    reference_ppl: float
    candidate_ppl: float
    kl_nats: Divergence
    top1_agreement: float
    top5_agreement: float
    probability_change: ProbabilityChange
    positions: tuple[PositionBin, ...]
    intervals: Intervals
    tokens: int
    windows: int
    context: int

    @property
    def ppl_ratio(self) -> float:
        """Candidate's perplexity over the reference's; 1 where nothing was lost."""
        return self.candidate_ppl / self.reference_ppl


def summarize(scores: TokenScores, groups: Sequence[int] | None = None) -> Drop:
    """Sum up the scores (W, N) of windows.

    Args:
        scores: Of at least one window.
        groups: Windows of each text, in order; None where all are of one text.

    Raises:
        EvaluationError: A model is so broken that it has no perplexity.
    """
    windows, predictions = scores.kl_nats.shape
    return Drop(
        reference_ppl=_perplexity(scores.reference_nats, who="reference"),
        candidate_ppl=_perplexity(scores.candidate_nats, who="candidate"),
        kl_nats=_divergence(scores.kl_nats),
        top1_agreement=float(scores.same_top1.mean()),
        top5_agreement=float(scores.same_top5.mean(dtype=np.float64)),
        probability_change=_probability_change(scores.probability_changes),
        positions=_positions(scores),
        intervals=_intervals(scores, groups or (windows,)),
        tokens=windows * predictions,
        windows=windows,
        context=predictions + 1,
    )


def histogram_borders() -> NDArray[np.float64]:
    """Return the borders of the bins of a histogram of divergences, in nats."""
    low, high = HISTOGRAM_DECADES
    return np.logspace(low, high, (high - low) * BINS_PER_DECADE + 1)


def _divergence(nats: Scalars) -> Divergence:
    median, p90, p99, p999 = np.quantile(nats, (0.5, 0.9, 0.99, 0.999))
    borders = histogram_borders()
    bins = np.searchsorted(borders, nats.ravel(), side="right") - 1
    counts = np.bincount(bins.clip(0, len(borders) - 2), minlength=len(borders) - 1)
    return Divergence(
        mean=float(nats.mean()),
        median=float(median),
        p90=float(p90),
        p99=float(p99),
        p999=float(p999),
        max=float(nats.max()),
        histogram=tuple(counts.tolist()),
    )


def _probability_change(changes: Scalars) -> ProbabilityChange:
    p1, p10, median, p90, p99 = map(float, np.quantile(changes, CHANGE_PERCENTILES))
    rms = math.sqrt(float(np.square(changes).mean()))
    mean = float(changes.mean())
    return ProbabilityChange(mean=mean, rms=rms, p1=p1, p10=p10, median=median, p90=p90, p99=p99)


def _positions(scores: TokenScores) -> tuple[PositionBin, ...]:
    predictions = scores.kl_nats.shape[1]
    borders = np.linspace(0, predictions, min(POSITION_BINS, predictions) + 1).round().astype(int)
    return tuple(
        PositionBin(
            start=start + 1,
            stop=stop + 1,
            top1_agreement=float(scores.same_top1[:, start:stop].mean()),
            kl_nats=float(scores.kl_nats[:, start:stop].mean()),
        )
        for start, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
    )


def _intervals(scores: TokenScores, groups: Sequence[int]) -> Intervals:
    columns = (
        scores.reference_nats,
        scores.candidate_nats,
        scores.kl_nats,
        scores.same_top1,
        scores.same_top5,
        scores.probability_changes,
    )
    figures = np.stack([column.mean(axis=1, dtype=np.float64) for column in columns], axis=1)
    means = resampled_means(figures, groups)
    reference, candidate, kl, top1, top5, change = means.T
    windows = len(figures)
    return Intervals(
        reference_ppl=interval(np.exp(reference), windows),
        candidate_ppl=interval(np.exp(candidate), windows),
        ppl_ratio=interval(np.exp(candidate - reference), windows),
        kl_nats=interval(kl, windows),
        top1_agreement=interval(top1, windows),
        top5_agreement=interval(top5, windows),
        probability_change=interval(change, windows),
    )


def _perplexity(nats: Scalars, *, who: str) -> float:
    mean = float(nats.mean())
    if mean > MAX_MEAN_NATS:
        raise EvaluationError(
            f"the {who} loses {mean:.4g} nats per token, where guessing loses about 10; "
            "the model is broken and has no perplexity"
        )
    return math.exp(mean)
