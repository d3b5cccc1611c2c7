"""Compare a candidate with its float reference on the same windows, block by block.

Axes: W windows, B windows of a block, T tokens of a window, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.divergence import (
    Logits,
    Scalars,
    TokenIds,
    TokenScores,
    join,
    score_tokens,
)

LogitsSource = Callable[[NDArray[np.int64]], NDArray[np.float32]]  # (B, T) -> (B, T, V)

CONTEXT = 256
WINDOWS_PER_TEXT = 32
LOGITS_AXES = 3
MAX_MEAN_NATS = 700.0  # e to this power is about the largest float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Kullback-Leibler divergence KL(reference || candidate) over all tokens, in nats."""

    mean: float
    median: float
    p99: float
    max: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What a candidate lost against its reference.

    Attributes:
        reference_ppl: Perplexity of the text under the reference.
        candidate_ppl: Perplexity of the text under the candidate.
        top1_agreement: Share of predictions with the same likeliest token, 0 to 1.
        tokens: Predictions that were compared: windows * (context - 1).
        context: Tokens of a window; each is scored with nothing before it.
    """

    reference_ppl: float
    candidate_ppl: float
    kl_nats: Divergence
    top1_agreement: float
    tokens: int
    windows: int
    context: int

    @property
    def ppl_ratio(self) -> float:
        """Candidate's perplexity over the reference's; 1 where nothing was lost."""
        return self.candidate_ppl / self.reference_ppl


def compare(reference: Iterable[Logits], candidate: LogitsSource, windows: TokenIds) -> Drop:
    """Run the candidate over what the reference saw and keep a few numbers per token.

    Args:
        reference: Blocks (B, T, V) of logits for consecutive windows, of any B.
        candidate: Called with the windows (B, T) of one block at a time.
        windows: Token ids (W, T).

    Raises:
        EvaluationError: Blocks and windows do not fit, or logits are not finite.
    """
    parts: list[TokenScores] = []
    done = 0
    for block in reference:
        ids = windows[done : done + len(block)]
        _check(block, ids, who="reference", first=done)
        found = candidate(ids)
        _check(found, ids, who="candidate", first=done)
        _check_vocabulary(block, found)
        parts.append(score_tokens(block, found, ids))
        done += len(block)
    if done != len(windows) or not parts:
        raise EvaluationError(
            f"the reference gave logits for {done} windows, expected {len(windows)}; "
            "measure both models on the same windows"
        )
    return _summarize(join(parts), windows)


def in_blocks(source: LogitsSource, windows: TokenIds, size: int) -> Iterator[Logits]:
    """Yield the logits of consecutive blocks of at most `size` windows."""
    for start in range(0, len(windows), size):
        yield source(windows[start : start + size])


def _check(logits: Logits, ids: TokenIds, *, who: str, first: int) -> None:
    if logits.ndim != LOGITS_AXES or logits.shape[:2] != ids.shape:
        raise EvaluationError(
            f"{who} logits have shape {logits.shape} for tokens of shape {ids.shape}; "
            "expected one row of logits per token"
        )
    finite = np.isfinite(logits).all(axis=(1, 2))
    if not finite.all():
        raise EvaluationError(
            f"{who} logits of window {first + int(finite.argmin())} are not all finite; "
            "the model is broken there and has no perplexity"
        )


def _check_vocabulary(reference: Logits, candidate: Logits) -> None:
    if reference.shape[-1] != candidate.shape[-1]:
        raise EvaluationError(
            f"the reference has {reference.shape[-1]} tokens, the candidate "
            f"{candidate.shape[-1]}; compare a bundle with the checkpoint it was made from"
        )


def _summarize(scores: TokenScores, windows: TokenIds) -> Drop:
    median, p99 = np.quantile(scores.kl_nats, (0.5, 0.99))
    return Drop(
        reference_ppl=_perplexity(scores.reference_nats, who="reference"),
        candidate_ppl=_perplexity(scores.candidate_nats, who="candidate"),
        kl_nats=Divergence(
            mean=float(scores.kl_nats.mean()),
            median=float(median),
            p99=float(p99),
            max=float(scores.kl_nats.max()),
        ),
        top1_agreement=float(scores.same_top1.mean()),
        tokens=len(scores.kl_nats),
        windows=windows.shape[0],
        context=windows.shape[1],
    )


def _perplexity(nats: Scalars, *, who: str) -> float:
    mean = float(nats.mean())
    if mean > MAX_MEAN_NATS:
        raise EvaluationError(
            f"the {who} loses {mean:.4g} nats per token, where guessing loses about 10; "
            "the model is broken and has no perplexity"
        )
    return math.exp(mean)
