"""What one predicted token says about a candidate: losses, divergence, agreement.

Axes: B windows, T tokens of a window, N = T - 1 predictions of a window, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]  # (B, T, V)
TokenIds = NDArray[np.int64]
Scalars = NDArray[np.float64]
Array = NDArray[np.generic]

# Float32 temporaries of this many logits stay in a core's cache.
SLICE_LOGITS = 1 << 19
TOP = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """One value per predicted token, each (B, N); all that is kept of the logits.

    Attributes:
        reference_nats: Negative log likelihood of the text's next token under the reference.
        candidate_nats: The same under the candidate.
        kl_nats: Kullback-Leibler divergence KL(reference || candidate).
        same_top1: Whether both hold the same token for the likeliest.
        same_top5: Share of the reference's five likeliest tokens that are among the candidate's.
    """

    reference_nats: Scalars
    candidate_nats: Scalars
    kl_nats: Scalars
    same_top1: NDArray[np.bool_]
    same_top5: NDArray[np.float32]

    @property
    def probability_changes(self) -> Scalars:
        """Probability of the text's next token: the candidate's less the reference's, (B, N)."""
        return np.exp(-self.candidate_nats) - np.exp(-self.reference_nats)

    def windows(self, chosen: slice | NDArray[np.intp]) -> "TokenScores":
        """Return the scores of some windows."""
        return _each(lambda arrays: arrays[0][chosen], [self])


def score_tokens(reference: Logits, candidate: Logits, windows: TokenIds) -> TokenScores:
    """Score the T - 1 predictions of each window (B, T): position t predicts token t + 1."""
    vocabulary = reference.shape[-1]
    expected = reference[:, :-1].reshape(-1, vocabulary)
    found = candidate[:, :-1].reshape(-1, vocabulary)
    targets = windows[:, 1:].reshape(-1)
    rows = max(1, SLICE_LOGITS // vocabulary)
    flat = join(
        [
            _score(expected[i : i + rows], found[i : i + rows], targets[i : i + rows])
            for i in range(0, len(targets), rows)
        ]
    )
    return _each(lambda arrays: arrays[0].reshape(len(windows), -1), [flat])


def join(parts: Sequence[TokenScores]) -> TokenScores:
    """Return the scores of all parts, in order."""
    return _each(np.concatenate, parts)


def _each(function: Callable[[list[Array]], Array], parts: Sequence[TokenScores]) -> TokenScores:
    names = [field.name for field in dataclasses.fields(TokenScores)]
    arrays = {name: function([getattr(part, name) for part in parts]) for name in names}
    return TokenScores(**arrays)  # type: ignore[arg-type]


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
        same_top5=_shared_share(_likeliest(reference), _likeliest(candidate)),
    )


def _normalizer(logits: NDArray[np.float32]) -> tuple[NDArray[np.float32], Scalars]:
    """Return exp(logits - max) (N, V) and the log-sum-exp (N)."""
    highest = logits.max(-1, keepdims=True)
    weights = logits - highest
    np.exp(weights, out=weights)
    norm = highest[:, 0] + np.log(weights.sum(-1, dtype=np.float64))
    return weights, norm


def _likeliest(logits: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the five likeliest tokens of each row in no order, (N, 5)."""
    count = min(TOP, logits.shape[-1])
    return np.argpartition(logits, -count, axis=-1)[:, -count:]


def _shared_share(one: NDArray[np.intp], other: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return the share of the entries of one row that are in the other, (N,)."""
    shared = (one[:, :, None] == other[:, None, :]).any(-1)
    share: NDArray[np.float32] = shared.mean(-1, dtype=np.float32)
    return share
