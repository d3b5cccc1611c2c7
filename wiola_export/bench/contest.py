"""Run the contestants in turns: each round starts a new process of each, one after the other.

What slows a machine down for a while then slows all of them, and ratios of medians can be read
where times cannot.
"""

import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from statistics import median

from wiola_export.bench import process
from wiola_export.bench.bandwidth import read_bandwidth
from wiola_export.bench.pages import huge_pages
from wiola_export.bench.workload import Figures, Workload, figures_in
from wiola_export.errors import EvaluationError, OptionError
from wiola_export.evaluate.machine import Machine, this_machine
from wiola_export.progress import Progress
from wiola_export.signals import signals_as_exit
from wiola_runtime.devices import default_threads

SCHEMA_VERSION = 1
MANUAL = "docs/benchmarks.md"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Something to time.

    Attributes:
        command: Program and arguments; a `Workload` as JSON is appended, `Figures` as JSON come
            back on the last line of its output.
    """

    name: str
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise OptionError(f"the name is {self.name!r}; expected one line of printable text")
        if not self.command or not self.command[0] or not all(map(_is_argument, self.command)):
            raise OptionError(
                f"the command of {self.name} cannot be run; expected a program and arguments, "
                "without zero bytes or halves of characters"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rounds of one contestant.

    Attributes:
        import_seconds: From the start of the process until its packages were imported, in each
            round; None where that isn't told.
        start_seconds: From the start of the process to its first token.
    """

    name: str
    rounds: tuple[Figures, ...]
    import_seconds: tuple[float | None, ...]
    start_seconds: tuple[float, ...]

    def median(self, field: str) -> float | None:
        """Return the median of a field of `Figures` over the rounds; None where it isn't told."""
        values = self.values(field)
        return median(values) if values else None

    def values(self, field: str) -> list[float]:
        """Return a field of `Figures` in every round that tells it."""
        found = (getattr(figures, field) for figures in self.rounds)
        return [value for value in found if value is not None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """All that was measured, and where.

    Attributes:
        threads: What was asked for, or else this product's own choice.
        huge_pages: What Linux says of transparent huge pages; None elsewhere.
        read_bytes_per_second: What this machine reads from memory, as measured between rounds.
    """

    schema_version: int
    machine: Machine
    threads: int
    huge_pages: str | None
    read_bytes_per_second: float
    workload: Workload
    contestants: tuple[Measured, ...]


def run_bench(
    contestants: Sequence[Contestant],
    workload: Workload,
    rounds: int,
    progress: Progress,
    *,
    timeout: float,
) -> Bench:
    """Time all contestants in so many rounds.

    Raises:
        EvaluationError: A process failed, or took longer than `timeout` seconds.
    """
    threads = workload.threads or default_threads()
    found: dict[str, list[tuple[Figures, float]]] = {one.name: [] for one in contestants}
    bandwidths = []
    turns = [one for _ in range(rounds) for one in contestants]
    progress.stage("timing in turns")
    with signals_as_exit():
        for turn, contestant in enumerate(progress.track(turns, len(turns))):
            if turn % len(contestants) == 0:
                bandwidths.append(read_bandwidth(threads))
            found[contestant.name].append(run_once(contestant, workload, timeout))
    return Bench(
        schema_version=SCHEMA_VERSION,
        machine=this_machine(),
        threads=threads,
        huge_pages=huge_pages(),
        read_bytes_per_second=median(bandwidths),
        workload=workload,
        contestants=tuple(_measured(name, runs) for name, runs in found.items()),
    )


def _measured(name: str, runs: Sequence[tuple[Figures, float]]) -> Measured:
    """Put the rounds of one contestant together; each with the time when it was started."""
    return Measured(
        name=name,
        rounds=tuple(figures for figures, _ in runs),
        import_seconds=tuple(
            figures.imported_at and figures.imported_at - started for figures, started in runs
        ),
        start_seconds=tuple(figures.ready_at - started for figures, started in runs),
    )


def _is_argument(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def run_once(contestant: Contestant, workload: Workload, timeout: float) -> tuple[Figures, float]:
    """Run a contestant in a process; return its figures, and when it was started.

    Raises:
        EvaluationError: The process failed, took longer than `timeout` seconds, or said something
            else.
    """
    request = json.dumps(dataclasses.asdict(workload))
    name, program = contestant.name, contestant.command[0]
    started = time.time()
    try:
        done = process.run([*contestant.command, request], timeout)
    except OSError as error:
        raise EvaluationError(
            f"{name} could not be started: {program}: {error.strerror}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EvaluationError(
            f"{name} took more than {timeout:g} seconds and was ended; give it more by --timeout"
        ) from error
    if done.exit_code != 0:
        reason = (done.errors.strip().splitlines() or ["no message"])[-1]
        code = done.exit_code
        ended = f"exit code {code}" if code > 0 else f"signal {-code}, {signal.strsignal(-code)}"
        raise EvaluationError(f"{name} could not be run ({ended}): {reason}")
    try:
        figures = figures_in(done.output)
        figures.require_within(started, time.time())
    except EvaluationError as error:
        raise EvaluationError(f"{name} printed no figures ({error}); see {MANUAL}") from error
    return figures, started
