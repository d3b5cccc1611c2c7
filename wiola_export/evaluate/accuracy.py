"""Run models over the same windows, block by block, and keep a few numbers per token.

Axes: W windows, B windows of a block, T tokens of a window, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.divergence import Logits, TokenIds, TokenScores, join, score_tokens
from wiola_export.evaluate.drop import Drop, summarize

LogitsSource = Callable[[NDArray[np.int64]], NDArray[np.float32]]  # (B, T) -> (B, T, V)
# A reference that has been run yields its blocks in order; a candidate is asked for each.
Source = Iterator[Logits] | LogitsSource
Pair = tuple[str, str]  # reference, candidate

CONTEXT = 256
WINDOWS_PER_TEXT = 32
LOGITS_AXES = 3


def compare(reference: Iterable[Logits], candidate: LogitsSource, windows: TokenIds) -> Drop:
    """Run the candidate over what the reference saw and sum up what it lost.

    Args:
        reference: Blocks (B, T, V) of logits for consecutive windows, of any B.
        candidate: Called with the windows (B, T) of one block at a time.
        windows: Token ids (W, T).

    Raises:
        EvaluationError: Blocks and windows do not fit, or logits are not finite.
    """
    sources = {"candidate": candidate}
    pair = ("reference", "candidate")
    return summarize(compare_pairs("reference", reference, sources, [pair], windows)[pair])


def compare_pairs(
    leader: str,
    blocks: Iterable[Logits],
    others: Mapping[str, Source],
    pairs: Sequence[Pair],
    windows: TokenIds,
) -> dict[Pair, TokenScores]:
    """Run several models over the same windows and score some pairs of them.

    Args:
        leader: Name of the model whose blocks set the pace.
        blocks: Its logits (B, T, V) for consecutive windows, of any B.
        others: The other models by name; what is an iterator gives blocks of the same sizes.
        pairs: Names of reference and candidate.
        windows: Token ids (W, T).

    Raises:
        EvaluationError: Blocks and windows do not fit, or logits are not finite.
    """
    parts: dict[Pair, list[TokenScores]] = {pair: [] for pair in pairs}
    done = 0
    for block in blocks:
        ids = windows[done : done + len(block)]
        found = {leader: block}
        _check(block, ids, who=leader, first=done)
        for name, source in others.items():
            found[name] = next(source) if isinstance(source, Iterator) else source(ids)
            _check(found[name], ids, who=name, first=done)
            _check_vocabulary(block, found[name])
        for reference, candidate in pairs:
            scores = score_tokens(found[reference], found[candidate], ids)
            parts[reference, candidate].append(scores)
        done += len(block)
    if done != len(windows) or not done:
        raise EvaluationError(
            f"the {leader} gave logits for {done} windows, expected {len(windows)}; "
            "measure both models on the same windows"
        )
    return {pair: join(scores) for pair, scores in parts.items()}


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
