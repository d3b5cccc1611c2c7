"""A finished cell is known again by all that decided it, and by nothing else."""

import dataclasses
import pickle
import shutil

import pytest
from support.studies import make_figures, make_task

from wiola_export.errors import OutputError
from wiola_export.options import CalibrationOptions, Quantization
from wiola_export.study.task import recall, remember, replace_file
from wiola_runtime.manifest import FILE_NAME, Manifest


@pytest.fixture
def task(tmp_path, demo_int8):
    """Return a task whose bundle and record are in place."""
    task = make_task(tmp_path)
    shutil.copytree(demo_int8, task.options.out)
    remember(task, task.options.out, make_figures())
    return task


def test_a_task_can_be_sent_to_another_process(tmp_path):
    task = make_task(tmp_path)

    assert pickle.loads(pickle.dumps(task)) == task


def test_what_is_finished_is_remembered(task):
    outcome = recall(task)

    assert (outcome.name, outcome.error) == ("int8-nearest-32", None)
    assert (outcome.choices, outcome.figures) == (task.choices, make_figures())


def test_where_it_lies_does_not_matter(task, tmp_path):
    moved = make_task(tmp_path / "moved")
    shutil.copytree(task.options.out, moved.options.out)
    shutil.copytree(task.record.parent, moved.record.parent)

    assert recall(moved) == recall(task)


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization": Quantization(precision="int8", method="nearest", block_size=64)},
        {"quantization": Quantization(precision="int8", method="hqq", block_size=32)},
        {"quantization": Quantization(precision="int8", method="nearest", symmetric=True)},
        {"int8_cache": True},
        {"target": "portable"},
    ],
)
def test_other_options_are_done_again(task, changes):
    other = dataclasses.replace(task.options, **changes)

    assert recall(dataclasses.replace(task, options=other)) is None


def test_the_default_and_the_same_block_for_all_are_two_cells(tmp_path):
    """The default takes finer blocks for embedding and head."""
    assert (
        make_task(tmp_path, "int8-default").choices != make_task(tmp_path, "int8-gptq-32").choices
    )


def test_the_windows_of_a_calibration_are_options(tmp_path):
    one = make_task(tmp_path, "int8-gptq-32")
    few = dataclasses.replace(one.options, calibration=CalibrationOptions(windows=8))

    assert one.choices["calibration_windows"] == 64
    assert dataclasses.replace(one, options=few).choices["calibration_windows"] == 8
    assert make_task(tmp_path).choices["calibration_windows"] is None


@pytest.mark.parametrize("kind", ["checkpoint_sha256", "texts", "calibration"])
def test_other_inputs_are_done_again(task, kind):
    found = "0" * 64 if kind == "checkpoint_sha256" else {"austen": "0" * 64}

    other = dataclasses.replace(task.inputs, **{kind: found})

    assert recall(dataclasses.replace(task, inputs=other)) is None


def test_a_bundle_of_another_checkpoint_is_done_again(task):
    folder = task.options.out
    manifest = Manifest.read(folder)
    source = dataclasses.replace(manifest.source, checkpoint_sha256="0" * 64)
    text = dataclasses.replace(manifest, source=source).to_json()
    (folder / FILE_NAME).write_text(text, "utf-8")
    remember(task, folder, make_figures())

    assert recall(task) is None


def test_a_bundle_that_was_replaced_is_done_again(task):
    path = task.options.out / FILE_NAME
    path.write_text(path.read_text("utf-8") + "\n", "utf-8")

    assert recall(task) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", None])
def test_a_record_that_cannot_be_read_is_no_record(task, text):
    task.record.unlink()
    if text is not None:
        task.record.write_text(text, "utf-8")

    assert recall(task) is None


def test_a_bundle_without_its_record_is_not_finished(task):
    """The record is written last."""
    shutil.rmtree(task.record.parent)

    assert recall(task) is None


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "deep" / "file.txt"

    replace_file(path, "one")
    replace_file(path, "two")

    assert [p.read_text("utf-8") for p in path.parent.iterdir()] == ["two"]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(OutputError) as caught:
        replace_file(tmp_path / "file" / "study.json", "")

    assert str(caught.value) == (
        f"{tmp_path / 'file' / 'study.json'} cannot be written (File exists); choose another --out"
    )
