"""Measure a bundle: against its checkpoint on a text, and on this machine's clock."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import wiola_runtime as wr
from wiola_calibration.corpus import PACKAGED, Text, packaged_text, user_text
from wiola_calibration.packing import Packed, pack_all
from wiola_export.evaluate.accuracy import CONTEXT, WINDOWS_PER_TEXT, compare
from wiola_export.evaluate.drop import Drop
from wiola_export.evaluate.machine import this_machine
from wiola_export.evaluate.speed import measure_speed
from wiola_export.extras import explain_missing_extra
from wiola_export.progress import Progress
from wiola_export.report.report import Accuracy, Report, make_report
from wiola_export.source import Model
from wiola_runtime.manifest import Manifest

# Windows that are scored together: enough to keep the kernels busy, few enough for memory.
BLOCK_WINDOWS = 8


def texts_to_measure(text: Path | None) -> list[Text]:
    """Open a user's text, or the packaged ones where there is none.

    Raises:
        CorpusError: The file is absent, empty, or no UTF-8 text.
    """
    return [packaged_text(name) for name in PACKAGED] if text is None else [user_text(text)]


def measure(
    bundle: Path,
    manifest: Manifest,
    model: Model | None,
    texts: Sequence[Text],
    progress: Progress,
) -> Report:
    """Measure accuracy (unless the weights are random), speed and memory of a bundle.

    Args:
        bundle: Folder with graph, weights, tokenizer and manifest.
        manifest: What the folder's manifest says, or will say.
        model: The source of its weights; None where they are random.
        texts: What to measure accuracy on.
        progress: Is told what goes on.

    Raises:
        EvaluationError: The bundle does not run or gives no numbers.
        CorpusError: The text cannot be measured on.
    """
    accuracy = None
    if model is not None and model.checkpoint is not None:
        progress.stage("comparing with the checkpoint")
        accuracy = measure_accuracy(bundle, model, texts, progress)
    progress.stage("timing")
    speed = measure_speed(bundle)
    return make_report(manifest, accuracy=accuracy, speed=speed, machine=this_machine())


def measure_accuracy(
    bundle: Path, model: Model, texts: Sequence[Text], progress: Progress
) -> Accuracy:
    """Run bundle and checkpoint over the same windows.

    Raises:
        EvaluationError: The bundle does not run or gives no numbers.
        CorpusError: The text cannot be measured on.
    """
    with wr.load(bundle, verify=False) as candidate:
        tokens = candidate.manifest.tokens
        packed: Packed = pack_all(
            texts,
            candidate.tokenizer.encode,
            context=min(CONTEXT, candidate.manifest.context_length),
            max_windows=WINDOWS_PER_TEXT,
            bos_id=tokens.bos_id,
        )
        count = math.ceil(len(packed.windows) / BLOCK_WINDOWS)
        blocks = progress.track(_reference(model, packed.windows), count)
        drop: Drop = compare(blocks, candidate.logits, packed.windows)
    return Accuracy(drop=drop, texts=packed.texts)


def _reference(model: Model, windows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    with explain_missing_extra():
        from wiola_export.reference import reference_logits  # noqa: PLC0415  torch is heavy
    return reference_logits(model, windows, BLOCK_WINDOWS)
