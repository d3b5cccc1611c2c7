"""`wiola-export study`: many ways to store one checkpoint, and which of them are best."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wiola_export.commands.export import FOLDER, calibration_source
from wiola_export.errors import EvaluationError, OptionError
from wiola_export.options import DEMOS, CalibrationOptions, Source

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from wiola_export.study.results import Results
    from wiola_export.study.runner import Study

MARKDOWN_FILE = "study.md"
Where = Callable[[], "AbstractContextManager[Executor]"]  # opens where cells are done


@click.command(short_help="Compare many ways to store a checkpoint.")
@click.option("--variant", help=f"A packaged checkpoint: {', '.join(DEMOS)}.")
@click.option("--checkpoint", type=FOLDER, help="Folder in the Hugging Face layout.")
@click.option("--out", type=FOLDER, required=True, help="Folder for bundles and results.")
@click.option(
    "--schemes", metavar="NAME,NAME...", help="Cells by name or pattern, as int4-gptq-*.  [all]"
)
@click.option("--text", type=FOLDER, help="UTF-8 text to measure on.  [packaged texts]")
@click.option(
    "--calibration",
    metavar="PATH|NAME",
    help="Texts to round weights on.  [both packaged]",
)
@click.option(
    "--calibration-windows",
    type=int,
    default=CalibrationOptions().windows,
    show_default=True,
    help="Most windows of 256 tokens to calibrate on.",
)
@click.option(
    "--workers", type=int, help="Processes on this machine; with several, speeds suffer.  [1]"
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler, as tcp://HOST:8786, whose workers do the cells. They must see OUT, "
    "checkpoint and texts under the same paths.",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
def study(  # noqa: PLR0913, PLR0917 - one for each option
    variant: str | None,
    checkpoint: Path | None,
    out: Path,
    schemes: str | None,
    text: Path | None,
    calibration: str | None,
    calibration_windows: int,
    workers: int | None,
    scheduler: str | None,
    *,
    quiet: bool,
) -> None:
    """Export a checkpoint in every scheme, block size and bit width, and find the frontier.

    \b
    OUT/study.md      table, smallest first; marks what no other beats in size and divergence
    OUT/study.json    the same for machines
    OUT/frontier.svg  the same to look at
    OUT/bundles/NAME  a bundle with its report for each cell

    Run it again after an interruption: cells that are finished are not done again. Exit code 2
    if a cell failed; the others are done all the same.
    """  # noqa: D301  click's mark for lines that it must not wrap
    where = _executor(workers, scheduler)
    from wiola_export.study.grid import pick  # noqa: PLC0415  heavy imports wait
    from wiola_export.study.runner import Study  # noqa: PLC0415

    found = Study(
        source=Source(variant=variant, checkpoint=checkpoint),
        cells=pick(schemes),
        out=out,
        calibration=CalibrationOptions(
            source=calibration_source(calibration), windows=calibration_windows
        ),
        text=text,
    )
    results = conduct(found, where, quiet=quiet)
    click.echo(str(out / MARKDOWN_FILE))
    require_all(results, out / MARKDOWN_FILE)


def require_all(results: "Results", table: Path) -> None:
    """Tell which cells have no figures.

    Raises:
        EvaluationError: There are some.
    """
    if results.failures:
        names = ", ".join(outcome.name for outcome in results.failures)
        raise EvaluationError(
            f"{len(results.failures)} of {len(results.outcomes)} cells failed: {names}; "
            f"{table} says why, and the same command tries them again"
        )


def conduct(study: "Study", where: Where, *, quiet: bool) -> "Results":
    """Have the cells done that are not finished, and write the results after each.

    Raises:
        ExportError: Checkpoint, options, output or workers do not go together.
        CorpusError: A text cannot be read.
    """
    from wiola_export.console import watching  # noqa: PLC0415
    from wiola_export.study.results import Results, write_results  # noqa: PLC0415
    from wiola_export.study.runner import run  # noqa: PLC0415

    tasks = study.tasks()
    results = Results(checkpoint_sha256=tasks[0].inputs.checkpoint_sha256)
    with where() as executor, watching(quiet=quiet) as progress:
        for outcomes in run(tasks, executor, progress):
            results = dataclasses.replace(results, outcomes=outcomes)
            write_results(results, study.out)
    return results


def _executor(workers: int | None, scheduler: str | None) -> Where:
    """Choose where cells are done.

    Raises:
        OptionError: A choice is out of range or without effect.
    """
    from wiola_export.study.executors import dask_cluster, local_processes  # noqa: PLC0415

    if workers is not None and scheduler is not None:
        raise OptionError("--workers has no effect with --scheduler, whose workers run already")
    if workers is not None and workers < 1:
        raise OptionError(f"--workers is {workers}; expected 1 or more")
    if scheduler is not None:
        return functools.partial(dask_cluster, scheduler)
    return functools.partial(local_processes, workers or 1)
