"""What bundles lost against their checkpoint, step by step and text by text."""

import contextlib
import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import wiola_runtime as wr
from wiola_calibration.corpus import Text
from wiola_calibration.packing import Packed
from wiola_calibration.record import CalibrationRecord
from wiola_export.contest import REFERENCE, Contest, Scores, pack_texts, run, stored_name
from wiola_export.evaluate.accuracy import Pair
from wiola_export.evaluate.divergence import TokenScores
from wiola_export.evaluate.drop import Drop, summarize
from wiola_export.evaluate.greedy import Continuation, compare_greedy, cut_prompts
from wiola_export.evaluate.ladder import RungName, make_ladder
from wiola_export.float_graph import FloatGraph, FloatPrecision
from wiola_export.progress import Progress
from wiola_export.report.figures import size
from wiola_export.report.overview import unique_names
from wiola_export.report.report import Accuracy
from wiola_export.scratch import scratch_folder
from wiola_export.source import Model
from wiola_runtime.manifest import Manifest, Target

FloatGraphs = Mapping[Target, FloatGraph]
LARGEST_GRAPH_BYTES = 1 << 30
NO_GRAPH = "no graph with float weights was given"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A bundle on disk, and what its export knows besides.

    Attributes:
        manifest: What the folder's manifest says, or will say.
        sensitivity: Mean KL divergence in nats that rounding one matrix alone costs, by name.
        calibration: On which texts the weights were rounded; None where they alone decided.
    """

    folder: Path
    manifest: Manifest
    sensitivity: Mapping[str, float] = dataclasses.field(default_factory=dict)
    calibration: CalibrationRecord | None = None

    @property
    def is_float(self) -> bool:
        """Whether no weight is quantized."""
        return self.manifest.precision in ("fp32", "fp16")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """How one bundle is reached: which pair of models is which step.

    Attributes:
        name: Of the bundle.
        graph: Name of its graph with float weights; None where that is not run.
        steps: Names of the models by the names of the rungs.
        graph_missing: Why the graph is not run; empty where it is.
    """

    name: str
    target: Target
    graph: str | None
    steps: Mapping[tuple[RungName, RungName], Pair]
    precision: FloatPrecision
    graph_missing: str


def compare_with_checkpoint(
    bundles: Sequence[Exported],
    model: Model,
    texts: Sequence[Text],
    graphs: FloatGraphs,
    progress: Progress,
) -> list[Accuracy]:
    """Run bundles, their graphs with float weights, and the checkpoint over the same windows.

    Raises:
        EvaluationError: A model gives no numbers.
        CorpusError: A text cannot be measured on.
        WiolaRuntimeError: A bundle cannot be run.
    """
    names = unique_names([bundle.manifest.name for bundle in bundles])
    climbs = [
        climb(name, bundle, graphs.get(bundle.manifest.target), stored_name(model))
        for name, bundle in zip(names, bundles, strict=True)
    ]
    with contextlib.ExitStack() as stack:
        progress.stage("comparing with the checkpoint")
        opened = {
            name: stack.enter_context(wr.load(bundle.folder, verify=False))
            for name, bundle in zip(names, bundles, strict=True)
        }
        wanted = {one.graph: one.target for one in climbs if one.graph is not None}
        contest = Contest(
            model=model,
            graphs={
                name: stack.enter_context(_opened(graphs[target], progress))
                for name, target in wanted.items()
            },
            bundles=opened,
            steps=tuple(pair for one in climbs for pair in one.steps.values()),
        )
        packed = pack_texts(texts, opened[names[0]])
        scores = run(contest, packed, progress)
        progress.stage("comparing what they write")
        return [_accuracy(one, contest, packed, scores) for one in climbs]


def climb(name: str, bundle: Exported, graph: FloatGraph | None, stored: str) -> Climb:
    """Decide which steps lead from the checkpoint to a bundle.

    Args:
        name: Of the bundle.
        bundle: The bundle.
        graph: Of its target, with float weights; None where there is none.
        stored: Name of the checkpoint as it is stored.
    """
    target = bundle.manifest.target
    missing = "the bundle itself is not quantized" if bundle.is_float else obstacle(graph)
    graph_name = None if missing else f"float graph for {target}"
    steps: dict[tuple[RungName, RungName], Pair] = {("checkpoint", "float16"): (stored, REFERENCE)}
    if graph_name is not None:
        steps["checkpoint", "graph"] = (stored, graph_name)
        steps["graph", "bundle"] = (graph_name, name)
    elif bundle.is_float:
        steps["checkpoint", "bundle"] = (stored, name)
    else:
        steps["float16", "bundle"] = (REFERENCE, name)
    precision: FloatPrecision = "fp16" if target == "cuda" else "fp32"
    return Climb(
        name=name,
        target=target,
        graph=graph_name,
        steps=steps,
        precision=graph.precision if graph else precision,
        graph_missing=missing,
    )


def obstacle(graph: FloatGraph | None) -> str:
    """Say why a graph with float weights cannot be run; nothing where it can."""
    if graph is None:
        return NO_GRAPH
    if graph.size_bytes > LARGEST_GRAPH_BYTES:
        return (
            f"its float weights take {size(graph.size_bytes)}, "
            f"more than the {size(LARGEST_GRAPH_BYTES)} that are measured"
        )
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < graph.size_bytes:
        return (
            f"its float weights take {size(graph.size_bytes)}, and {tempfile.gettempdir()} has "
            f"{size(free)} free"
        )
    return ""


@contextlib.contextmanager
def _opened(graph: FloatGraph, progress: Progress) -> Iterator[wr.Model]:
    with scratch_folder("wiola-float-", progress.warn) as folder:
        graph.write(folder)
        with wr.load(folder, verify=False) as model:
            yield model


def _accuracy(one: Climb, contest: Contest, packed: Packed, scores: Scores) -> Accuracy:
    groups = [text.windows for text in packed.texts]
    mine = scores.everywhere[REFERENCE, one.name]
    candidate = contest.bundles[one.name]
    continuations: tuple[Continuation, ...] = ()
    if one.graph is not None:
        prompts = cut_prompts(packed.windows, candidate.manifest.context_length)
        continuations = compare_greedy(contest.graphs[one.graph], candidate, prompts)
    return Accuracy(
        drop=summarize(mine, groups),
        texts=packed.texts,
        by_text=_by_text(mine, groups) if len(groups) > 1 else (),
        ladder=make_ladder(
            {rungs: scores.ladder[pair] for rungs, pair in one.steps.items()},
            scores.ladder_groups,
            precision=one.precision,
            graph_missing=one.graph_missing,
        ),
        continuations=continuations,
    )


def _by_text(scores: TokenScores, groups: Sequence[int]) -> tuple[Drop, ...]:
    stops = itertools.accumulate(groups)
    return tuple(
        summarize(scores.windows(slice(stop - count, stop)))
        for stop, count in zip(stops, groups, strict=True)
    )
