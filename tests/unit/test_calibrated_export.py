"""An export with a text and without one: what is said, what is listed, and what is refused."""

import collections
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import oracles
from support.checkpoint_folder import edit_json
from support.command_line import refused
from support.progress import Recording

from wiola_export.options import CalibrationOptions, ExportOptions, Quantization, Source
from wiola_export.pipeline import export
from wiola_export.quantize.spool import Spool

CONTEXT = 32
WORDS = "It is a truth universally acknowledged, that "


@pytest.fixture(autouse=True)
def _trace_once(monkeypatch):
    monkeypatch.setattr("wiola_export.trace.trace", oracles.shared_trace)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated") / "checkpoint"
    return oracles.write_checkpoint(oracles.load("untied"), folder)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a file of some windows of the small tokenizer's tokens."""
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    path.write_text(WORDS * 12, encoding="utf-8")
    return path


def run(checkpoint, out, calibration, *, method=None, progress=None, precision="int4"):
    options = ExportOptions(
        source=Source(checkpoint=checkpoint),
        quantization=Quantization(precision=precision, method=method),
        calibration=calibration,
        out=out,
        report=False,
    )
    return export(options, progress)


@pytest.fixture(scope="module")
def exported(checkpoint, text, tmp_path_factory):
    """Return a calibrated bundle, and what was said meanwhile."""
    progress = Recording()
    calibration = CalibrationOptions(source=text, context=CONTEXT)
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        out = tmp_path_factory.mktemp("exported") / "bundle"
        return run(checkpoint, out, calibration, progress=progress), progress


def test_fewer_windows_than_asked_for_are_a_warning_and_no_failure(exported):
    bundle, progress = exported

    (warning,) = [line for line in progress.warnings if "asked for" in line]
    assert warning.startswith("the calibration texts fill ")
    assert warning.endswith(
        f"windows of {CONTEXT} tokens, fewer than the 64 asked for; give more text"
    )
    assert bundle.folder.is_dir()


def test_stages_are_told_in_their_order(exported):
    _, progress = exported

    assert progress.stages[0] == "calibrating"
    assert progress.stages[-3:] == [
        "lowering for cpu",
        "writing weights",
        "recording the self-test",
    ]


def test_every_matrix_is_listed_once_as_quantized_or_with_a_reason(exported):
    """Packed ones by all that they are made from; those that are never run are not in the graph."""
    bundle, _ = exported
    listed = bundle.manifest.quantization.tensors
    sources = collections.Counter(name for tensor in listed for name in tensor.sources)
    shapes = oracles.load("untied").config.tensor_shapes()
    unused = {f"model.layers.0.attn.{part}_ctx_proj.weight" for part in "kv"}

    assert set(sources) == {name for name, shape in shapes.items() if len(shape) == 2} - unused
    assert set(sources.values()) == {1}
    assert all(tensor.bits in (4, 8) or tensor.note for tensor in listed)
    for tensor in listed:
        rows = sum(shapes[name][0] for name in tensor.sources)
        assert tensor.shape == (rows, shapes[tensor.sources[0]][1])


def test_without_data_nothing_is_calibrated(checkpoint, tmp_path):
    """No text is opened, and no weight is rounded before the file is written."""
    progress = Recording()
    untouched = mock.patch.object(Spool, "put", side_effect=AssertionError("calibrated"))
    unread = mock.patch(
        "wiola_export.prepare.packaged_calibration", side_effect=AssertionError("opened")
    )

    with untouched, unread:
        bundle = run(
            checkpoint, tmp_path / "bundle", CalibrationOptions(source="none"), progress=progress
        )

    assert "calibrating" not in progress.stages
    assert progress.warnings == []
    assert {tensor.bits for tensor in bundle.manifest.quantization.tensors} == {4, 8}


@pytest.mark.parametrize("method", ["nearest", "hqq"])
def test_methods_that_need_no_text_take_none(checkpoint, tmp_path, method):
    calibration = CalibrationOptions(source="none")

    bundle = run(checkpoint, tmp_path / "bundle", calibration, method=method)

    assert bundle.folder.is_dir()


def test_a_text_below_one_window_is_refused_before_anything_is_written(
    checkpoint, tmp_path, capsys
):
    path = tmp_path / "short.txt"
    path.write_text("It is", encoding="utf-8")

    message = refused(
        capsys, "--checkpoint", checkpoint, "--int4", "--quiet", "--calibration", path,
        "--out", tmp_path / "bundle",
    )  # fmt: skip

    assert message.startswith("the calibration texts give ")
    assert message.endswith("tokens, fewer than one window of 128; give more text")
    assert not (tmp_path / "bundle").exists()


# What is quantized already


def refused_untouched(capsys, checkpoint, out):
    """Ask for INT4; return the message, and see that no work was done."""
    with mock.patch("wiola_export.trace.trace", side_effect=AssertionError("traced")):
        with mock.patch.object(Spool, "put", side_effect=AssertionError("calibrated")):
            message = refused(capsys, "--checkpoint", checkpoint, "--int4", "--out", out)
    assert not out.exists()
    return message


def test_a_bundle_is_not_quantized_again(exported, tmp_path, capsys):
    bundle, _ = exported

    message = refused_untouched(capsys, bundle.folder, tmp_path / "again")

    assert message == (
        f"{bundle.folder} is an exported bundle (it has manifest.json); export from the float "
        "checkpoint"
    )


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors"])
def test_a_checkpoint_that_says_it_is_quantized_is_refused(tmp_path, capsys, method):
    folder = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "checkpoint")
    edit_json(folder / "config.json", quantization_config={"quant_method": method, "bits": 4})

    message = refused_untouched(capsys, folder, tmp_path / "again")

    assert message == (
        f"{folder / 'config.json'} has a quantization_config: the weights are quantized already; "
        "export from the float checkpoint"
    )


PACKED = {
    "qweight": (np.int32, ": {} is stored as I32, expected F32, F16, BF16; export from the float"),
    "weight_packed": (np.int32, ": {} is stored as I32, expected F32, F16, BF16; export from the"),
    "scales": (np.float16, " holds {}: the weights are quantized already; export from the float"),
    "weight_scale": (np.float32, " holds {}: the weights are quantized already; export from the"),
}


@pytest.mark.parametrize("part", PACKED)
def test_packed_weights_are_refused_whatever_the_config_says(tmp_path, capsys, part):
    """As GPTQ, AWQ and compressed-tensors name them."""
    case = oracles.load("untied")
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint")
    name, (dtype, expected) = f"model.layers.0.attn.q_proj.{part}", PACKED[part]
    save_file(case.weights | {name: np.zeros((8, 64), dtype)}, folder / "model.safetensors")

    message = refused_untouched(capsys, folder, tmp_path / "again")

    assert message.startswith(f"{folder / 'model.safetensors'}{expected.format(name)}")
    assert message.endswith("export from the float checkpoint")
