"""How a study is run: one failing cell stops no other, and every failure is one line."""

import concurrent.futures
import dataclasses
import os
import signal
import sys
import time
from concurrent.futures import BrokenExecutor
from unittest import mock

import pytest
from support.command_line import refused
from support.progress import Recording
from support.studies import make_figures

from wiola_export import cli
from wiola_export.errors import MissingExtraError, OptionError, QuantizationError
from wiola_export.options import CalibrationOptions, Source
from wiola_export.study import executors, runner, worker
from wiola_export.study.executors import dask_cluster, local_processes
from wiola_export.study.grid import pick
from wiola_export.study.runner import Study, run
from wiola_export.study.task import Outcome

DEMO = Source(variant="demo")
WANTED = "int8-nearest-32,int8-nearest-64,int4-hqq-32"


class Here(concurrent.futures.Executor):
    """Does everything at once, in this process."""

    def submit(self, function, /, *arguments):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments))
        except RuntimeError as error:
            future.set_exception(error)
        return future


def tasks(out, wanted=WANTED, **changes):
    return Study(source=DEMO, cells=pick(wanted), out=out, **changes).tasks()


def finish(task):
    return Outcome(name=task.name, choices=task.choices, figures=make_figures())


@pytest.fixture
def doing(monkeypatch):
    """Replace what a worker does."""
    return lambda do: monkeypatch.setattr(runner, "do", do)


def test_outcomes_come_one_by_one_and_sorted(tmp_path, doing):
    doing(finish)

    steps = list(run(tasks(tmp_path), Here(), Recording()))

    assert [len(step) for step in steps] == [0, 1, 2, 3]
    assert [one.name for one in steps[-1]] == sorted(WANTED.split(","))


def test_a_bug_in_one_cell_is_its_outcome(tmp_path, doing):
    def do(task):
        if task.name == "int4-hqq-32":
            raise RuntimeError("worker\nlost")
        return finish(task)

    doing(do)
    progress = Recording()

    *_, outcomes = run(tasks(tmp_path), Here(), progress)

    assert [one.error for one in outcomes] == ["RuntimeError: worker lost", None, None]
    assert progress.warnings == ["int4-hqq-32: RuntimeError: worker lost"]


def test_a_cell_that_was_given_up_is_told(tmp_path):
    future = concurrent.futures.Future()
    future.cancel()
    future.set_running_or_notify_cancel()

    (*_, outcomes) = run(
        tasks(tmp_path, "int8-dynamic"), mock.Mock(submit=lambda *_: future), Recording()
    )

    assert outcomes[0].error == "the scheduler gave it up; run the study again"


def test_an_interrupt_cancels_what_has_not_begun(tmp_path):
    futures = [concurrent.futures.Future() for _ in range(3)]
    futures[0].set_result(Outcome(name="int8-nearest-32", choices={}, figures=make_figures()))
    waiting = iter(futures)
    steps = run(tasks(tmp_path), mock.Mock(submit=lambda *_: next(waiting)), Recording())
    next(steps)
    next(steps)

    steps.close()

    assert [future.cancelled() for future in futures] == [False, True, True]


def test_a_known_failure_in_a_worker_comes_back_as_one_line(tmp_path, monkeypatch):
    def export(_options):
        raise QuantizationError("a weight\nis too large")

    monkeypatch.setattr(worker, "export", export)
    (task,) = tasks(tmp_path, "int8-dynamic")

    outcome = worker.do(task)

    assert (outcome.figures, outcome.error) == (None, "a weight is too large")
    assert not task.record.exists()


def test_a_worker_that_sees_another_checkpoint_is_told(tmp_path, monkeypatch):
    source = mock.Mock(checkpoint_sha256="0" * 64)
    bundle = mock.Mock(manifest=mock.Mock(source=source))
    monkeypatch.setattr(worker, "export", lambda _options: bundle)
    (task,) = tasks(tmp_path, "int8-dynamic")

    assert worker.do(task).error == (
        f"the worker found checkpoint 000000000000…, the study is of "
        f"{task.inputs.checkpoint_sha256[:12]}…; let workers see the same files"
    )


def test_calibration_reaches_the_cells_that_look_at_a_text(tmp_path):
    few = CalibrationOptions(source="kjv", windows=4)

    gptq, nearest = tasks(tmp_path, "int8-gptq-32,int4-hqq-32", calibration=few)

    assert gptq.options.calibration == few
    assert set(gptq.inputs.calibration) == {"kjv"}
    assert nearest.options.calibration == CalibrationOptions()
    assert nearest.inputs.calibration == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--variant 120m",
            "random weights have no accuracy to study; give --checkpoint DIR or --variant demo",
        ),
        ("", "nothing to export; give --checkpoint DIR or --variant NAME"),
        ("--variant demo --workers 0", "--workers is 0; expected 1 or more"),
        (
            "--variant demo --workers 2 --scheduler tcp://x:1",
            "--workers has no effect with --scheduler, whose workers run already",
        ),
        (
            "--variant demo --schemes int4-hqq-32 --calibration kjv",
            "--calibration has no effect: no chosen cell looks at a text; drop it",
        ),
        (
            "--variant demo --schemes int4-gptq-32 --calibration none",
            "--method gptq needs a text; drop --calibration none, or take --method nearest or hqq",
        ),
    ],
)
def test_what_cannot_be_studied_is_said_in_one_line(arguments, message, capsys, tmp_path):
    assert refused(capsys, "study", *arguments.split(), "--out", tmp_path / "out") == message
    assert not (tmp_path / "out").exists()


def test_a_missing_dask_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'wiola-export\[dask\]'$"):
        with dask_cluster("tcp://127.0.0.1:1"):
            pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x"])
def test_a_scheduler_that_does_not_answer_is_one_line(address, monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed")
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)

    with pytest.raises(OptionError) as caught:
        with dask_cluster(address):
            pass

    assert str(caught.value).startswith(f"--scheduler {address} does not answer (")
    assert "expected an address such as tcp://HOST:8786" in str(caught.value)


def test_local_processes_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(executors, "default_threads", lambda: 8)

    with local_processes(2) as executor:
        found = executor.submit(os.getenv, "OMP_NUM_THREADS").result()

    assert found == "4"
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_user_who_limits_threads_is_heard(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    with local_processes(1) as executor:
        assert executor.submit(os.getenv, "OMP_NUM_THREADS").result() == "3"


def test_a_process_that_is_told_to_leave_does_no_other_task():
    with local_processes(1) as executor:
        process = executor.submit(os.getpid).result()
        interrupted = executor.submit(time.sleep, 60)
        os.kill(process, signal.SIGTERM)

        assert isinstance(interrupted.exception(), SystemExit | BrokenExecutor)
        with pytest.raises(BrokenExecutor):
            executor.submit(time.sleep, 60).result()


def test_the_command_writes_results_and_fails_at_the_end(tmp_path, doing, monkeypatch, capsys):
    def do(task):
        outcome = finish(task)
        failed = dataclasses.replace(outcome, figures=None, error="too large")
        return failed if task.name == "int4-hqq-32" else outcome

    doing(do)
    monkeypatch.setattr(executors, "ProcessPoolExecutor", lambda *_, **__: Here())
    out = tmp_path / "out"

    code = cli.main(
        ["study", "--variant", "demo", "--schemes", WANTED, "--out", str(out), "--quiet"]
    )

    printed, error = capsys.readouterr()
    assert (code, printed) == (2, f"{out / 'study.md'}\n")
    assert error == (
        f"wiola-export: error: 1 of 3 cells failed: int4-hqq-32; {out / 'study.md'} says why, "
        "and the same command tries them again\n"
    )
    assert {path.name for path in out.iterdir()} == {"study.json", "study.md", "frontier.svg"}
