"""Measure bundles: against their checkpoint on a text, and on this machine's clock."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wiola_calibration.corpus import PACKAGED, Text, packaged_text, user_text
from wiola_calibration.record import CalibrationRecord
from wiola_export.comparison import NO_GRAPH, Exported, compare_with_checkpoint
from wiola_export.evaluate.machine import this_machine
from wiola_export.evaluate.rounding_error import is_rescaled, measure_errors
from wiola_export.evaluate.speed import measure_speed
from wiola_export.float_graph import FloatGraph
from wiola_export.progress import Progress
from wiola_export.report.report import NOTHING, Accuracy, Report, make_report
from wiola_export.source import Model
from wiola_runtime.manifest import Manifest, Target

Errors = tuple[Mapping[str, float], str]
BuildFloatGraph = Callable[[Target], FloatGraph]


def texts_to_measure(text: Path | None) -> list[Text]:
    """Open a user's text, or the packaged ones where there is none.

    Raises:
        CorpusError: The file is absent, empty, or no UTF-8 text.
    """
    return [packaged_text(name) for name in PACKAGED] if text is None else [user_text(text)]


def measure(  # noqa: PLR0913 - what a pipeline knows besides is optional
    bundle: Path,
    manifest: Manifest,
    model: Model | None,
    texts: Sequence[Text],
    progress: Progress,
    *,
    float_graph: BuildFloatGraph | None = None,
    sensitivity: Mapping[str, float] = NOTHING,
    calibration: CalibrationRecord | None = None,
) -> Report:
    """Measure accuracy (unless the weights are random), speed and memory of a bundle.

    Args:
        bundle: Folder with graph, weights, tokenizer and manifest.
        manifest: What the folder's manifest says, or will say.
        model: The source of its weights; None where they are random.
        texts: What to measure accuracy on.
        progress: Is told what goes on.
        float_graph: Builds the graph of a target with float weights; without it a loss of the
            conversion cannot be told from one of quantization.
        sensitivity: Mean KL divergence in nats that rounding one matrix alone costs, by name.
        calibration: On which texts the weights were rounded.

    Raises:
        EvaluationError: The bundle does not run or gives no numbers.
        CorpusError: The text cannot be measured on.
    """
    exported = Exported(
        folder=bundle, manifest=manifest, sensitivity=sensitivity, calibration=calibration
    )
    return measure_all([exported], model, texts, progress, float_graph=float_graph)[0]


def measure_all(
    bundles: Sequence[Exported],
    model: Model | None,
    texts: Sequence[Text],
    progress: Progress,
    *,
    float_graph: BuildFloatGraph | None = None,
) -> list[Report]:
    """Measure bundles of one checkpoint, all on the same windows of the same texts.

    Raises:
        EvaluationError: A bundle does not run or gives no numbers.
        CorpusError: The text cannot be measured on.
    """
    accuracies: Sequence[Accuracy | None] = [None] * len(bundles)
    errors: Sequence[Errors] = [(NOTHING, "")] * len(bundles)
    if model is not None and model.checkpoint is not None:
        graphs = _build_graphs(bundles, float_graph, progress)
        accuracies = compare_with_checkpoint(bundles, model, texts, graphs, progress)
        progress.stage("reading the stored weights")
        errors = [_errors(bundle, graphs) for bundle in progress.track(bundles, len(bundles))]
    progress.stage("timing")
    return [
        make_report(
            bundle.manifest,
            accuracy=accuracy,
            speed=measure_speed(bundle.folder),
            machine=this_machine(),
            errors=found,
            errors_missing=missing,
            sensitivity=bundle.sensitivity,
            calibration=bundle.calibration,
        )
        for bundle, accuracy, (found, missing) in zip(bundles, accuracies, errors, strict=True)
    ]


def measure_accuracy(
    bundle: Path, model: Model, texts: Sequence[Text], progress: Progress
) -> Accuracy:
    """Run bundle and checkpoint over the same windows, and nothing else.

    Raises:
        EvaluationError: The bundle does not run or gives no numbers.
        CorpusError: The text cannot be measured on.
    """
    exported = Exported(folder=bundle, manifest=Manifest.read(bundle))
    return compare_with_checkpoint([exported], model, texts, {}, progress)[0]


def _build_graphs(
    bundles: Sequence[Exported], build: BuildFloatGraph | None, progress: Progress
) -> dict[Target, FloatGraph]:
    """Build the graph of each target once."""
    if build is None:
        return {}
    progress.stage("tracing the graph with float weights")
    targets = dict.fromkeys(bundle.manifest.target for bundle in bundles)
    return {target: build(target) for target in targets}


def _errors(bundle: Exported, graphs: Mapping[Target, FloatGraph]) -> Errors:
    """Return the error of every matrix, or none and the reason."""
    graph = graphs.get(bundle.manifest.target)
    if graph is None:
        return NOTHING, NO_GRAPH
    found = measure_errors(bundle.folder, bundle.manifest, graph.weights)
    if is_rescaled(bundle.manifest, found):
        return NOTHING, "calibration has scaled them, and the graph that was given has not"
    return found, ""
