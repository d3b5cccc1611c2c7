"""Run a checkpoint, graphs with its float weights, and bundles over the same windows of text.

Axes: W windows, T tokens of a window.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

import wiola_runtime as wr
from wiola_calibration.corpus import Text
from wiola_calibration.packing import Packed, pack_all
from wiola_export.evaluate.accuracy import (
    CONTEXT,
    WINDOWS_PER_TEXT,
    Pair,
    Source,
    compare_pairs,
)
from wiola_export.evaluate.divergence import Logits, TokenIds, TokenScores, join
from wiola_export.extras import explain_missing_extra
from wiola_export.progress import Progress
from wiola_export.source import Model

# Logits of one model that are held at a time; more would only take memory.
BLOCK_LOGITS = 1 << 24
BLOCK_WINDOWS = 8
# A model of more float32 bytes climbs the ladder on fewer windows: each rung is a pass of its own.
WHOLE_LADDER_BYTES = 256 << 20
LADDER_WINDOWS_PER_TEXT = 8
REFERENCE, CHECKPOINT = "reference", "checkpoint"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What was found, by the names of reference and candidate.

    Attributes:
        everywhere: Scores on all windows (W, T - 1), of each bundle against the reference.
        ladder: Scores on the windows of the ladder.
        ladder_groups: How many of those are of each text.
    """

    everywhere: dict[Pair, TokenScores]
    ladder: dict[Pair, TokenScores]
    ladder_groups: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Who is compared with whom on what.

    Attributes:
        model: The checkpoint.
        graphs: Graphs with float weights by name.
        bundles: Bundles by name.
        steps: Pairs of the ladders.
    """

    model: Model
    graphs: dict[str, wr.Model]
    bundles: dict[str, wr.Model]
    steps: tuple[Pair, ...]


def stored_name(model: Model) -> str:
    """Name the checkpoint as it is stored; in float16 it is the reference itself."""
    assert model.checkpoint is not None
    kinds = {info.dtype for info in model.checkpoint.tensors.values()}
    return REFERENCE if kinds == {"F16"} else CHECKPOINT


def pack_texts(texts: Sequence[Text], bundle: wr.Model) -> Packed:
    """Cut texts into the windows on which a bundle is measured.

    Raises:
        CorpusError: A text does not fill a window.
    """
    return pack_all(
        texts,
        bundle.tokenizer.encode,
        context=min(CONTEXT, bundle.manifest.context_length),
        max_windows=WINDOWS_PER_TEXT,
        bos_id=bundle.manifest.tokens.bos_id,
    )


def run(contest: Contest, packed: Packed, progress: Progress) -> Scores:
    """Score every bundle on all windows, and the steps of the ladder on its windows.

    Raises:
        EvaluationError: A model gives no numbers.
        MissingExtraError: torch is not installed.
    """
    chosen = ladder_windows(contest.model, packed)
    order = np.concatenate([chosen, np.setdiff1d(np.arange(len(packed.windows)), chosen)])
    parts = [part for part in np.split(packed.windows[order], [len(chosen)]) if len(part)]
    size = block_windows(packed.windows.shape[1], contest.model.config.vocab_size)
    lengths = [math.ceil(len(part) / size) for part in parts]
    running = (_reference(contest.model, part, size) for part in parts)
    blocks = progress.track(itertools.chain.from_iterable(running), sum(lengths))
    everywhere = [(REFERENCE, name) for name in contest.bundles]
    bundles: dict[str, Source] = {name: m.logits for name, m in contest.bundles.items()}
    ladder = _climb(contest, itertools.islice(blocks, lengths[0]), parts[0], size)
    rest = [compare_pairs(REFERENCE, blocks, bundles, everywhere, part) for part in parts[1:]]
    back = np.argsort(order)
    return Scores(
        everywhere={
            p: join([part[p] for part in (ladder, *rest)]).windows(back) for p in everywhere
        },
        ladder=ladder,
        ladder_groups=_groups(packed, chosen),
    )


def _climb(
    contest: Contest, blocks: Iterator[Logits], windows: TokenIds, size: int
) -> dict[Pair, TokenScores]:
    """Score the steps of the ladder too."""
    others: dict[str, Source] = {
        name: model.logits for name, model in (contest.graphs | contest.bundles).items()
    }
    stored = stored_name(contest.model)
    if stored == CHECKPOINT:
        others[CHECKPOINT] = _reference(contest.model, windows, size, as_stored=True)
    everywhere = [(REFERENCE, name) for name in contest.bundles]
    pairs = list(dict.fromkeys((*contest.steps, *everywhere)))
    return compare_pairs(REFERENCE, blocks, others, pairs, windows)


def ladder_windows(model: Model, packed: Packed) -> NDArray[np.intp]:
    """Choose the windows of the ladder: all, or some that lie evenly over each text."""
    floats = sum(math.prod(shape) for shape in model.config.tensor_shapes().values())
    if 4 * floats <= WHOLE_LADDER_BYTES:
        return np.arange(len(packed.windows))
    ends = itertools.accumulate(text.windows for text in packed.texts)
    return np.concatenate(
        [
            np.unique(
                np.linspace(end - text.windows, end - 1, LADDER_WINDOWS_PER_TEXT).round()
            ).astype(np.intp)
            for end, text in zip(ends, packed.texts, strict=True)
        ]
    )


def block_windows(context: int, vocab_size: int) -> int:
    """Return how many windows are scored together."""
    return max(1, min(BLOCK_WINDOWS, BLOCK_LOGITS // (context * vocab_size)))


def _groups(packed: Packed, chosen: NDArray[np.intp]) -> tuple[int, ...]:
    """Return how many of the chosen windows are of each text."""
    ends = np.cumsum([text.windows for text in packed.texts])
    counts = np.bincount(np.searchsorted(ends, chosen, side="right"), minlength=len(ends))
    return tuple(counts.tolist())


def _reference(
    model: Model, windows: TokenIds, size: int, *, as_stored: bool = False
) -> Iterator[Logits]:
    with explain_missing_extra():
        from wiola_export.reference import reference_logits  # noqa: PLC0415  torch is heavy
    return reference_logits(model, windows, size, as_stored=as_stored)
