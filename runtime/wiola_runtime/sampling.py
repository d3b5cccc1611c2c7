"""From logits to one token id, in numpy.

Axes: V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.config import GenerationConfig
from wiola_runtime.errors import BundleError, GenerationError
from wiola_runtime.generate import Logits, Pick

Scores = NDArray[np.float64]  # (V,)


class Shaper(Protocol):
    """Changes what is chosen from, given the reply so far."""

    def __call__(self, logits: Logits) -> Logits:
        """Return other logits (V,); the argument is left as it is."""
        ...

    def note(self, token_id: int) -> None:
        """Take a token of the reply into account."""
        ...


def sampler(
    config: GenerationConfig,
    *,
    vocab_size: int,
    prompt_ids: Sequence[int] = (),
    grammar: Shaper | None = None,
) -> Pick:
    """Build the function that picks a token, every choice already made.

    Without a seed the draw differs from run to run. A grammar has the last word on what is
    possible.

    Raises:
        GenerationError: A biased token is outside the vocabulary.
    """
    choose = _greedy if config.temperature == 0 else _drawing(config)
    adjusts = [Adjustments(config, vocab_size, prompt_ids)] if _adjusts(config) else []
    shapers: list[Shaper] = [*adjusts, *([grammar] if grammar else [])]

    def pick(logits: Logits) -> int:
        _peak(logits)  # what is excluded must be sound as well
        for shaper in shapers:
            logits = shaper(logits)
        token_id = choose(logits)
        for shaper in shapers:
            shaper.note(token_id)
        return token_id

    return pick if shapers else choose


class Adjustments:
    """What penalties and biases make of logits, given prompt and reply so far."""

    def __init__(
        self, config: GenerationConfig, vocab_size: int, prompt_ids: Sequence[int]
    ) -> None:
        self._config = config
        self._seen = np.zeros(vocab_size, np.bool_)
        self._seen[list(prompt_ids)] = True
        self._counts = np.zeros(vocab_size, np.float32)
        self._bias = np.zeros(vocab_size, np.float32)
        for token_id, bias in config.logit_bias.items():
            if token_id >= vocab_size:
                raise GenerationError(
                    f"logit_bias names token {token_id}; expected ids below {vocab_size}"
                )
            self._bias[token_id] = bias

    def __call__(self, logits: Logits) -> Logits:
        """Return adjusted logits (V,); the argument is left as it is."""
        config = self._config
        adjusted = penalised(logits, self._seen, config.repetition_penalty)
        adjusted -= config.frequency_penalty * self._counts
        adjusted -= config.presence_penalty * (self._counts > 0)
        adjusted += self._bias
        return adjusted

    def note(self, token_id: int) -> None:
        """Take a token of the reply into account."""
        self._seen[token_id] = True
        self._counts[token_id] += 1


def penalised(logits: Logits, seen: NDArray[np.bool_], penalty: float) -> Logits:
    """Make the tokens of a mask less likely (more, where the penalty is below 1)."""
    weaker = np.where(logits > 0, logits / penalty, logits * penalty)
    return np.where(seen, weaker, logits).astype(np.float32)


def probabilities(logits: Logits, config: GenerationConfig) -> Scores:
    """Return the distribution that is drawn from, (V,) in float64.

    Raises:
        BundleError: A logit is NaN or infinite.
    """
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - _peak(logits)) / config.temperature
    chances = np.exp(scaled)
    if config.top_k is not None and config.top_k < logits.size:
        chances[logits < np.partition(logits, -config.top_k)[-config.top_k]] = 0
    chances /= chances.sum()
    if config.typical_p is not None and config.typical_p < 1:
        chances = _typical(chances, config.typical_p)
    if config.top_p is not None and config.top_p < 1:
        chances = _nucleus(chances, config.top_p)
    if config.min_p is not None:
        chances[chances < config.min_p * chances.max()] = 0
    return np.asarray(chances / chances.sum())


def log_probabilities(logits: Logits) -> Scores:
    """Return the model's own log probabilities, (V,) in float64.

    Raises:
        BundleError: A logit is NaN or infinite.
    """
    shifted = logits.astype(np.float64) - _peak(logits)
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _typical(chances: Scores, typical_p: float) -> Scores:
    """Keep the tokens whose information is closest to the entropy (arXiv 2202.00666)."""
    possible = np.flatnonzero(chances)
    information = -np.log(chances[possible])
    entropy = float((chances[possible] * information).sum())
    order = possible[np.argsort(np.abs(information - entropy), kind="stable")]
    return _reaching(chances, order, typical_p)


def _nucleus(chances: Scores, top_p: float) -> Scores:
    # Tokens below this edge hold less than 1 - top_p together, so the nucleus cannot need
    # them, and only the few above it are sorted.
    candidates = np.flatnonzero(chances > (1 - top_p) / chances.size)
    order = candidates[np.argsort(-chances[candidates], kind="stable")]
    return _reaching(chances, order, top_p)


def _reaching(chances: Scores, order: NDArray[np.int64], share: float) -> Scores:
    """Keep the first tokens of an order that reach a share of the sum together."""
    reached = np.cumsum(chances[order]) / chances.sum()
    size = int(np.searchsorted(reached, share)) + 1
    kept = np.zeros_like(chances)
    kept[order[:size]] = chances[order[:size]]
    return np.asarray(kept / kept.sum())


def _adjusts(config: GenerationConfig) -> bool:
    penalties = (config.repetition_penalty - 1, config.presence_penalty, config.frequency_penalty)
    return any(penalties) or bool(config.logit_bias)


def _drawing(config: GenerationConfig) -> Pick:
    generator = np.random.default_rng(config.seed)

    def pick(logits: Logits) -> int:
        edges = np.cumsum(probabilities(logits, config))
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
