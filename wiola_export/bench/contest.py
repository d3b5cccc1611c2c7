"""Run the contestants in turns: each round starts a new process of each, one after the other.

What slows a machine down for a while then slows all of them, and ratios of medians can be read
where times cannot.
"""

import dataclasses
import json
import subprocess
import time
from collections.abc import Sequence
from statistics import median

from wiola_export.bench.bandwidth import read_bandwidth
from wiola_export.bench.pages import huge_pages
from wiola_export.bench.workload import Figures, Workload
from wiola_export.errors import EvaluationError
from wiola_export.evaluate.machine import Machine, this_machine
from wiola_export.progress import Progress
from wiola_runtime.devices import default_threads

SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Something to time.

    Attributes:
        command: Program and arguments; a `Workload` as JSON is appended, `Figures` as JSON come
            back on the last line of its output.
    """

    name: str
    command: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rounds of one contestant.

    Attributes:
        start_seconds: From the start of the process to its first token, in each round.
    """

    name: str
    rounds: tuple[Figures, ...]
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
    contestants: Sequence[Contestant], workload: Workload, rounds: int, progress: Progress
) -> Bench:
    """Time all contestants in so many rounds.

    Raises:
        EvaluationError: A process failed; the message carries its last line.
    """
    threads = workload.threads or default_threads()
    found: dict[str, list[tuple[Figures, float]]] = {one.name: [] for one in contestants}
    bandwidths = []
    turns = [one for _ in range(rounds) for one in contestants]
    progress.stage("timing in turns")
    for turn, contestant in enumerate(progress.track(turns, len(turns))):
        if turn % len(contestants) == 0:
            bandwidths.append(read_bandwidth(threads))
        found[contestant.name].append(run_once(contestant, workload))
    return Bench(
        schema_version=SCHEMA_VERSION,
        machine=this_machine(),
        threads=threads,
        huge_pages=huge_pages(),
        read_bytes_per_second=median(bandwidths),
        workload=workload,
        contestants=tuple(
            Measured(
                name=name,
                rounds=tuple(figures for figures, _ in runs),
                start_seconds=tuple(seconds for _, seconds in runs),
            )
            for name, runs in found.items()
        ),
    )


def run_once(contestant: Contestant, workload: Workload) -> tuple[Figures, float]:
    """Run a contestant in a process; return its figures, and the time to its first token.

    Raises:
        EvaluationError: The process failed, or said something else.
    """
    request = json.dumps(dataclasses.asdict(workload))
    started = time.time()
    try:
        done = subprocess.run(  # noqa: S603 - our own script, or a command that the user described
            [*contestant.command, request], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise EvaluationError(
            f"{contestant.name} could not be started: {contestant.command[0]}: {error.strerror}"
        ) from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EvaluationError(
            f"{contestant.name} could not be run (exit code {done.returncode}): {reason}"
        )
    try:
        figures = Figures(**json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, TypeError, ValueError) as error:
        raise EvaluationError(
            f"{contestant.name} printed no figures ({error}); see docs/benchmarks.md"
        ) from error
    return figures, figures.ready_at - started
