"""From logits to one token id, in numpy.

Axes: V vocabulary.
"""

import dataclasses
import math
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.errors import BundleError, GenerationError
from wiola_runtime.generate import Logits, Pick

Scores = NDArray[np.float64]  # (V,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose the next token; the default is greedy.

    Attributes:
        temperature: Divides the logits; 0 always takes the highest.
        top_k: Keep the k most likely tokens.
        top_p: Keep the smallest set of most likely tokens that reaches this probability.
        min_p: Keep tokens of at least this share of the best token's probability.
        repetition_penalty: Divides the positive and multiplies the negative logits of tokens
            that prompt or reply already hold (arXiv 1909.05858, section 4.1).
        seed: Same seed, same reply, on the same machine; None draws one.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0 <= self.temperature < math.inf, "finite and >= 0")
        _check(
            "top_k",
            self.top_k,
            self.top_k is None or is_count(self.top_k, 1),
            "an integer >= 1, or None",
        )
        _check("top_p", self.top_p, self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]")
        _check("min_p", self.min_p, self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]")
        _check(
            "repetition_penalty",
            self.repetition_penalty,
            0 < self.repetition_penalty < math.inf,
            "finite and > 0",
        )
        _check(
            "seed",
            self.seed,
            self.seed is None or is_count(self.seed, 0),
            "an integer >= 0, or None",
        )
        for name in ("top_k", "top_p", "min_p"):
            if self.temperature == 0 and getattr(self, name) is not None:
                raise GenerationError(
                    f"{name} has no effect at temperature 0; leave it out or raise temperature"
                )

    def seeded(self) -> "Sampling":
        """Return the same choice with its seed settled, so that a result can report it."""
        if self.temperature == 0 or self.seed is not None:
            return self
        return dataclasses.replace(self, seed=secrets.randbits(32))


def sampler(sampling: Sampling, *, vocab_size: int, prompt_ids: Sequence[int] = ()) -> Pick:
    """Build the function that picks a token, every choice already made.

    Without a seed the draw differs from run to run.
    """
    choose = _greedy if sampling.temperature == 0 else _drawing(sampling)
    if sampling.repetition_penalty == 1:
        return choose
    seen = np.zeros(vocab_size, np.bool_)
    seen[list(prompt_ids)] = True

    def pick(logits: Logits) -> int:
        token_id = choose(penalised(logits, seen, sampling.repetition_penalty))
        seen[token_id] = True
        return token_id

    return pick


def penalised(logits: Logits, seen: NDArray[np.bool_], penalty: float) -> Logits:
    """Make the tokens of a mask less likely (more, where the penalty is below 1)."""
    weaker = np.where(logits > 0, logits / penalty, logits * penalty)
    return np.where(seen, weaker, logits).astype(np.float32)


def probabilities(logits: Logits, sampling: Sampling) -> Scores:
    """Return the distribution that is drawn from, (V,) in float64.

    Raises:
        BundleError: A logit is NaN or infinite.
    """
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - _peak(logits)) / sampling.temperature
    chances = np.exp(scaled)
    if sampling.top_k is not None and sampling.top_k < logits.size:
        chances[logits < np.partition(logits, -sampling.top_k)[-sampling.top_k]] = 0
    chances /= chances.sum()
    if sampling.top_p is not None and sampling.top_p < 1:
        chances = _nucleus(chances, sampling.top_p)
    if sampling.min_p is not None:
        chances[chances < sampling.min_p * chances.max()] = 0
    return np.asarray(chances / chances.sum())


def _nucleus(chances: Scores, top_p: float) -> Scores:
    # Tokens below this edge hold less than 1 - top_p together, so the nucleus cannot need
    # them, and only the few above it are sorted.
    candidates = np.flatnonzero(chances > (1 - top_p) / chances.size)
    order = candidates[np.argsort(-chances[candidates], kind="stable")]
    size = int(np.searchsorted(np.cumsum(chances[order]), top_p)) + 1
    kept = np.zeros_like(chances)
    kept[order[:size]] = chances[order[:size]]
    return kept


def _drawing(sampling: Sampling) -> Pick:
    generator = np.random.default_rng(sampling.seed)

    def pick(logits: Logits) -> int:
        edges = np.cumsum(probabilities(logits, sampling))
        return int(np.searchsorted(edges, generator.random() * edges[-1], side="right"))

    return pick


def _greedy(logits: Logits) -> int:
    best = int(logits.argmax())
    _require_finite(logits[best])
    return best


def _peak(logits: Logits) -> float:
    peak = logits.max()
    _require_finite(peak)
    return float(peak)


def _require_finite(value: np.float32) -> None:
    if not np.isfinite(value):
        raise BundleError(
            f"the graph returned a logit of {value}, expected finite numbers; "
            "run Model.self_test() to see whether bundle and machine agree"
        )


def is_count(value: object, minimum: int) -> bool:
    """Tell whether a value is an integer of at least `minimum`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _check(field: str, value: float | None, valid: bool, expected: str) -> None:
    if not valid:
        raise GenerationError(f"{field} is {value}; expected {expected}")
