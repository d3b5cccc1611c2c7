"""From the checkpoint to the bundle in steps, so that no step is blamed for another.

    checkpoint ─┬─ float16     its weights rounded: how much float16 alone would cost
                └─ graph       the graph of the bundle before any weight is quantized: conversion
                      └─ bundle    quantization

Where there is no such graph, the bundle is compared with the checkpoint's float16 weights.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.bootstrap import Interval
from wiola_export.evaluate.divergence import TokenScores
from wiola_export.evaluate.drop import Drop, summarize

RungName = Literal["checkpoint", "float16", "graph", "bundle"]
# Mean divergence of a faithful conversion in nats: float32 sums in another order stay below 1e-7,
# float16 activations below 1e-4; a wrong constant costs hundredths.
FAITHFUL_NATS = {"fp32": 1e-5, "fp16": 1e-3}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One form of the model, compared with the one that it was made from.

    Attributes:
        compared_with: None for the checkpoint, with which everything begins.
        ppl_ratio: Perplexity over that of `compared_with`.
        kl_nats: Mean divergence from `compared_with`.
    """

    name: RungName
    ppl: float
    ppl_interval: Interval | None
    compared_with: RungName | None
    ppl_ratio: float | None
    ppl_ratio_interval: Interval | None
    kl_nats: float | None
    top1_agreement: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """All rungs on the same windows.

    Attributes:
        precision: In which the graph was run: `fp32`, or `fp16` where the target has no float32.
        graph_missing: Why there is no rung `graph`; empty where there is one.
    """

    rungs: tuple[Rung, ...]
    precision: Literal["fp32", "fp16"]
    graph_missing: str
    tokens: int
    windows: int

    def __post_init__(self) -> None:
        if ("graph" in (rung.name for rung in self.rungs)) == bool(self.graph_missing):
            raise EvaluationError(
                "a ladder has either a rung `graph` or a reason why it is missing; give one"
            )

    @property
    def conversion(self) -> Rung | None:
        """The rung that shows what the conversion did; None where it was not measured."""
        made = (rung for rung in self.rungs if rung.compared_with == "checkpoint")
        return next((rung for rung in made if rung.name != "float16"), None)

    @property
    def is_faithful(self) -> bool | None:
        """Whether the graph computes what the checkpoint does; None where that is unknown."""
        rung = self.conversion
        if rung is None or rung.kl_nats is None:
            return None
        return rung.kl_nats <= FAITHFUL_NATS[self.precision]


def make_ladder(
    steps: Mapping[tuple[RungName, RungName], TokenScores],
    groups: Sequence[int],
    *,
    precision: Literal["fp32", "fp16"],
    graph_missing: str,
) -> Ladder:
    """Build a ladder from the scores of its steps, the one to `float16` first.

    Args:
        steps: Scores (W, N) by the names of reference and candidate.
        groups: Windows of each text.
        precision: Of the graph before quantization.
        graph_missing: Why no step leads to `graph`; empty where one does.

    Raises:
        EvaluationError: A model has no perplexity, or the steps contradict the reason.
    """
    drops = {names: summarize(scores, groups) for names, scores in steps.items()}
    first = drops["checkpoint", "float16"]
    rungs = [_rung(candidate, reference, drop) for (reference, candidate), drop in drops.items()]
    return Ladder(
        rungs=(_checkpoint(first), *rungs),
        precision=precision,
        graph_missing=graph_missing,
        tokens=first.tokens,
        windows=first.windows,
    )


def _checkpoint(drop: Drop) -> Rung:
    return Rung(
        name="checkpoint",
        ppl=drop.reference_ppl,
        ppl_interval=drop.intervals.reference_ppl,
        compared_with=None,
        ppl_ratio=None,
        ppl_ratio_interval=None,
        kl_nats=None,
        top1_agreement=None,
    )


def _rung(name: RungName, reference: RungName, drop: Drop) -> Rung:
    return Rung(
        name=name,
        ppl=drop.candidate_ppl,
        ppl_interval=drop.intervals.candidate_ppl,
        compared_with=reference,
        ppl_ratio=drop.ppl_ratio,
        ppl_ratio_interval=drop.intervals.ppl_ratio,
        kl_nats=drop.kl_nats.mean,
        top1_agreement=drop.top1_agreement,
    )
