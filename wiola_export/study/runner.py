"""Turn a study into tasks, have them done, and keep the results up to date meanwhile."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from pathlib import Path

from wiola_calibration import CalibrationFiles
from wiola_export.errors import OptionError
from wiola_export.measure import texts_to_measure
from wiola_export.options import CalibrationOptions, ExportOptions, Source
from wiola_export.output import check_target
from wiola_export.prepare import open_calibration
from wiola_export.progress import Progress
from wiola_export.source import find_model
from wiola_export.study.grid import Cell
from wiola_export.study.task import Inputs, Outcome, Task, recall
from wiola_export.study.worker import do, failed

DEFAULT_CALIBRATION = CalibrationOptions()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Which cells of which checkpoint are compared, and on which texts.

    Attributes:
        out: Folder of the results and, in `bundles`, of a bundle for each cell.
        text: UTF-8 file to measure on; None takes the packaged texts.
    """

    source: Source
    cells: tuple[Cell, ...]
    out: Path
    calibration: CalibrationOptions = DEFAULT_CALIBRATION
    text: Path | None = None

    def __post_init__(self) -> None:
        """Refuse weights that nothing can be learnt from."""
        if self.source.is_random:
            raise OptionError(
                "random weights have no accuracy to study; give --checkpoint DIR or --variant demo"
            )

    def tasks(self) -> tuple[Task, ...]:
        """Check everything that can be checked beforehand, and return a task for each cell.

        Raises:
            ExportError: Checkpoint, options or output do not go together.
            CorpusError: A text cannot be read.
        """
        model = find_model(self.source)
        assert model.checkpoint is not None
        texts = {text.name: text.sha256 for text in texts_to_measure(self.text)}
        inputs = Inputs(checkpoint_sha256=model.checkpoint.sha256(), texts=texts, calibration={})
        tasks = []
        for cell in self.cells:
            options = self._options(cell)
            assert options.out is not None
            check_target(options.out, force=True, sources=[model.checkpoint.folder])
            calibration = _hashes(open_calibration(options))
            tasks.append(
                Task(
                    name=cell.name,
                    options=options,
                    inputs=dataclasses.replace(inputs, calibration=calibration),
                    record=self.out.resolve() / "cells" / f"{cell.name}.json",
                )
            )
        if self.calibration != DEFAULT_CALIBRATION and not any(t.options.calibrates for t in tasks):
            raise OptionError(
                "--calibration has no effect: no chosen cell looks at a text; drop it"
            )
        return tuple(tasks)

    def _options(self, cell: Cell) -> ExportOptions:
        checkpoint, given = self.source.checkpoint, self.calibration.source
        options = ExportOptions(
            source=dataclasses.replace(self.source, checkpoint=checkpoint and checkpoint.resolve()),
            quantization=cell.quantization,
            budget=cell.budget,
            out=self.out.resolve() / "bundles" / cell.name,
            text=self.text and self.text.resolve(),
            force=True,  # what is there is an earlier state of the same cell
        )
        if not options.calibrates:
            return options
        source = given.resolve() if isinstance(given, Path) else given
        calibration = dataclasses.replace(self.calibration, source=source)
        return dataclasses.replace(options, calibration=calibration)


def run(
    tasks: Sequence[Task], executor: Executor, progress: Progress
) -> Iterator[tuple[Outcome, ...]]:
    """Have every task done that is not finished; yield all outcomes so far, sorted by name.

    The first are those of tasks that were finished before; then there is one more each time.

    Args:
        tasks: What to do.
        executor: Where.
        progress: Is told how many are done.
    """
    known = [recall(task) for task in tasks]
    outcomes = {outcome.name: outcome for outcome in known if outcome is not None}
    yield _sorted(outcomes)
    earlier = f", {len(outcomes)} finished earlier" if outcomes else ""
    waiting = {executor.submit(do, task): task for task in tasks if task.name not in outcomes}
    progress.stage(f"exporting {len(waiting)} cells{earlier}")
    try:
        for future in progress.track(as_completed(waiting), len(waiting)):
            outcome = _outcome(future, waiting[future])
            if outcome.error is not None:
                progress.warn(f"{outcome.name}: {outcome.error}")
            outcomes[outcome.name] = outcome
            yield _sorted(outcomes)
    finally:
        for future in waiting:
            future.cancel()


def _outcome(future: Future[Outcome], task: Task) -> Outcome:
    """Return what a worker sent back; what it raised is an outcome too."""
    if future.cancelled():
        return failed(task, "the scheduler gave it up; run the study again")
    error = future.exception()
    if error is None:
        return future.result()
    return failed(task, f"{type(error).__name__}: {error}")


def _sorted(outcomes: Mapping[str, Outcome]) -> tuple[Outcome, ...]:
    return tuple(outcomes[name] for name in sorted(outcomes))


def _hashes(files: CalibrationFiles | None) -> dict[str, str]:
    return {file.text.name: file.text.sha256 for file in files.files} if files else {}
