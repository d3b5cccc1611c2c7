"""What one predicted token says about a candidate: losses, divergence, agreement.

Axes: B windows, T tokens of a window, N = T - 1 predictions of a window, V vocabulary.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]  # (B, T, V)
TokenIds = NDArray[np.int64]
Scalars = NDArray[np.float64]

# Float32 temporaries of this many logits stay in a core's cache.
SLICE_LOGITS = 1 << 19


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """One value per predicted token; all that is kept of the logits.

    Attributes:
        reference_nats: Negative log likelihood of the text's next token under the reference.
        candidate_nats: The same under the candidate.
        kl_nats: Kullback-Leibler divergence KL(reference || candidate).
        same_top1: Whether both hold the same token for the likeliest.
    """

    reference_nats: Scalars
    candidate_nats: Scalars
    kl_nats: Scalars
    same_top1: NDArray[np.bool_]


def score_tokens(reference: Logits, candidate: Logits, windows: TokenIds) -> TokenScores:
    """Score the T - 1 predictions of each window (B, T): position t predicts token t + 1."""
    vocabulary = reference.shape[-1]
    expected = reference[:, :-1].reshape(-1, vocabulary)
    found = candidate[:, :-1].reshape(-1, vocabulary)
    targets = windows[:, 1:].reshape(-1)
    rows = max(1, SLICE_LOGITS // vocabulary)
    return join(
        [
            _score(expected[i : i + rows], found[i : i + rows], targets[i : i + rows])
            for i in range(0, len(targets), rows)
        ]
    )


def join(parts: list[TokenScores]) -> TokenScores:
    """Return the scores of all parts, in order."""
    return TokenScores(
        reference_nats=np.concatenate([part.reference_nats for part in parts]),
        candidate_nats=np.concatenate([part.candidate_nats for part in parts]),
        kl_nats=np.concatenate([part.kl_nats for part in parts]),
        same_top1=np.concatenate([part.same_top1 for part in parts]),
    )


def _score(
    reference: NDArray[np.float32], candidate: NDArray[np.float32], targets: TokenIds
) -> TokenScores:
    """Score predictions (N, V).

    Exponentials are float32, sums float64: with p the reference's probabilities,
    KL = sum p (reference - candidate) - (log-sum-exp of the reference - that of the candidate).
    Equal logits give exactly 0; the error is below 1e-6 nats.
    """
    weights, reference_norm = _normalizer(reference)
    _, candidate_norm = _normalizer(candidate)
    total = weights.sum(-1, dtype=np.float64)
    weights *= reference - candidate
    kl = weights.sum(-1, dtype=np.float64) / total - (reference_norm - candidate_norm)
    chosen = np.arange(len(targets)), targets
    return TokenScores(
        reference_nats=reference_norm - reference[chosen],
        candidate_nats=candidate_norm - candidate[chosen],
        # A divergence is never negative; what is left below zero is rounding.
        kl_nats=np.maximum(kl, 0.0),
        same_top1=reference.argmax(-1) == candidate.argmax(-1),
    )


def _normalizer(logits: NDArray[np.float32]) -> tuple[NDArray[np.float32], Scalars]:
    """Return exp(logits - max) (N, V) and the log-sum-exp (N)."""
    highest = logits.max(-1, keepdims=True)
    weights = logits - highest
    np.exp(weights, out=weights)
    norm = highest[:, 0] + np.log(weights.sum(-1, dtype=np.float64))
    return weights, norm
