"""Do one cell, wherever the executor puts it."""

import threading

from wiola_export.errors import EvaluationError, ExportError
from wiola_export.pipeline import export
from wiola_export.study.task import Figures, Outcome, Task, recall, remember
from wiola_runtime.errors import WiolaRuntimeError

# Pictures are drawn with settings of the whole process, and time is measured: where a process has
# several threads for tasks, they take turns.
_TURN = threading.Lock()


def do(task: Task) -> Outcome:
    """Export and measure; the bundle and the record of it appear whole or not at all.

    A failure that is known comes back as data: it must not stop the other cells.
    """
    with _TURN:
        try:
            return recall(task) or _do(task)
        except (ExportError, WiolaRuntimeError) as error:
            return failed(task, str(error))


def failed(task: Task, reason: str) -> Outcome:
    """Say in one line why a cell has no figures."""
    line = " ".join(reason.split())
    return Outcome(name=task.name, choices=task.choices, figures=None, error=line)


def _do(task: Task) -> Outcome:
    bundle = export(task.options)
    found, wanted = bundle.manifest.source.checkpoint_sha256, task.inputs.checkpoint_sha256
    if found != wanted:
        raise EvaluationError(
            f"the worker found checkpoint {str(found)[:12]}…, the study is of {wanted[:12]}…; "
            "let workers see the same files"
        )
    assert bundle.report is not None
    figures = Figures.of(bundle.report)
    remember(task, bundle.folder, figures)
    return Outcome(name=task.name, choices=task.choices, figures=figures)
