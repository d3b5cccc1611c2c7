"""A whole study: local processes and a Dask cluster find the same; what is finished is kept."""

import dataclasses

import pytest
from support.progress import Recording
from support.studies import CELLS, SmallStudy, patch_trace

from wiola_export.study.executors import dask_cluster, local_processes
from wiola_export.study.runner import run
from wiola_runtime.manifest import Manifest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return SmallStudy.write(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def local(small, tmp_path_factory):
    """Do the study in a process of its own, with as many threads as a worker of Dask has."""
    tasks = small.study(tmp_path_factory.mktemp("local") / "out").tasks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with local_processes(1) as executor:
            executor.submit(patch_trace).result()
            *_, outcomes = run(tasks, executor, Recording())
    return tasks, outcomes


def without_speed(outcomes):
    """Return the figures that every machine finds."""
    return {
        outcome.name: (outcome.choices, dataclasses.replace(outcome.figures, speed=None))
        for outcome in outcomes
    }


def test_every_cell_is_a_bundle_with_its_report(local):
    tasks, outcomes = local

    assert [outcome.name for outcome in outcomes] == sorted(CELLS)
    for task in tasks:
        assert Manifest.read(task.options.out).quantization.bits == int(task.name[3])
        assert (task.options.out / "report.html").is_file()


def test_every_cell_has_its_figures(local):
    for outcome in local[1]:
        assert outcome.error is None
        assert outcome.figures.kl_nats > 0
        assert outcome.figures.speed.reply_tokens_per_second > 0


def test_a_cluster_finds_the_same(local, small, tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    tasks = small.study(tmp_path / "out").tasks()
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        with distributed.Client(cluster) as client:
            client.run(patch_trace)
        with dask_cluster(cluster.scheduler_address) as executor:
            *_, outcomes = run(tasks, executor, Recording())

    assert [outcome.error for outcome in outcomes] == [None, None]
    assert without_speed(outcomes) == without_speed(local[1])


def test_what_is_finished_is_not_done_again(local):
    """An executor that would do something would fail."""
    tasks, outcomes = local
    progress = Recording()

    (again, *_) = run(tasks, None, progress)

    assert again == outcomes
    assert progress.stages == ["exporting 0 cells, 2 finished earlier"]
