"""A whole export: what it writes, that it writes the same again, and what it leaves behind."""

import dataclasses
import json
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import oracles
from support.checkpoint_folder import edit_json
from support.graphs import GraphRunner, distance
from support.progress import Interrupting, Recording
from support.tiny_bundle import tokenizer_json

import wiola_runtime as wr
from wiola_export.errors import CheckpointError, OptionError, OutputError, QuantizationError
from wiola_export.options import CalibrationOptions, ExportOptions, Quantization, Source
from wiola_export.pipeline import export
from wiola_runtime.manifest import FILE_NAME, Manifest

INT8, INT4 = Quantization(precision="int8"), Quantization(precision="int4")
FP32, FP16 = Quantization(precision="fp32"), Quantization(precision="fp16")
NO_TEXT = CalibrationOptions(source="none")
STAGES = 5


def options(checkpoint, out, quantization=INT8, target="cpu", **changes):
    return ExportOptions(
        source=Source(checkpoint=checkpoint),
        quantization=quantization,
        target=target,
        out=out,
        report=False,
        **{"calibration": NO_TEXT} | changes,
    )


def run(*arguments, progress=None, **changes):
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        return export(options(*arguments, **changes), progress)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    root = tmp_path_factory.mktemp("pipeline")
    return oracles.write_checkpoint(oracles.load("gqa3"), root / "checkpoint")


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    return run(checkpoint, tmp_path_factory.mktemp("exported") / "bundle")


def test_the_folder_holds_what_the_manifest_lists(exported):
    names = {p.name for p in exported.folder.iterdir()}

    assert names == {
        "README.md", "manifest.json", "model.onnx", "model.onnx.data", "plan.json",
        "tokenizer.json",
    }  # fmt: skip
    assert exported.manifest == Manifest.read(exported.folder)
    assert set(exported.manifest.files) == names - {FILE_NAME}


def test_the_manifest_describes_the_export(exported):
    manifest = exported.manifest

    assert (manifest.name, manifest.family) == ("wiola-checkpoint-int8", "gcla")
    assert (manifest.variant, manifest.weights) == (None, "trained")
    assert (manifest.precision, manifest.target, manifest.cache) == ("int8", "cpu", "shared")
    assert (manifest.context_length, manifest.vocab_size) == (256, 320)
    assert manifest.tokens.bos_id == 1
    assert manifest.tokens.eos_ids == (2, 4)
    assert (manifest.graph.opset, manifest.graph.domains) == (21, ("com.microsoft",))
    assert manifest.quantization.block_size == 32
    assert len(manifest.source.checkpoint_sha256) == 64
    assert manifest.source.seed is None
    first = manifest.states[0]
    assert (first.past, first.kind, first.axes) == (
        "past_key_values.0.key", "cache", ("B", 2, "C", 16),
    )  # fmt: skip


def test_the_bundle_passes_its_self_test(exported):
    with wr.load(exported.folder) as model:
        report = model.self_test()

    assert report.passed
    assert len(exported.manifest.self_test.token_ids) == 24


def test_the_same_input_gives_the_same_bytes(exported, checkpoint, tmp_path):
    again = run(checkpoint, tmp_path / "bundle")

    assert contents(again.folder) == contents(exported.folder)


def test_other_weights_give_other_hashes(exported, tmp_path):
    """One number of one norm."""
    case = oracles.load("gqa3")
    name = "model.final_norm.weight"
    changed = case.weights | {name: case.weights[name] * np.float32(1.001)}
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", changed)

    other = run(folder, tmp_path / "bundle").manifest

    mine = exported.manifest
    assert other.source.checkpoint_sha256 != mine.source.checkpoint_sha256
    changed_files = {name for name in other.files if other.files[name] != mine.files[name]}
    assert changed_files & {"model.onnx", "model.onnx.data"}
    assert "tokenizer.json" not in changed_files


@pytest.mark.parametrize("stage", range(STAGES - 1))
@pytest.mark.parametrize("replaced", [False, True])
def test_an_interrupt_at_any_stage_leaves_what_was_there(checkpoint, tmp_path, stage, replaced):
    out = tmp_path / "bundle"
    if replaced:
        out.mkdir()
        (out / FILE_NAME).write_text('{"format_version": 1}')
    before = [contents(out)] if replaced else []

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, out, progress=Interrupting(stage), force=replaced)

    assert [contents(p) for p in tmp_path.iterdir()] == before


def test_an_interrupt_between_two_weights_leaves_nothing(checkpoint, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, tmp_path / "bundle", progress=Interrupting(item=5))

    assert list(tmp_path.iterdir()) == []


def test_the_stages_are_told_in_their_order(checkpoint, tmp_path):
    progress = Recording()

    run(checkpoint, tmp_path / "bundle", progress=progress)

    assert progress.stages == [
        "tracing", "lowering for cpu", "writing weights", "recording the self-test",
    ]  # fmt: skip
    assert progress.items == progress.total > 40


def test_a_weight_that_does_not_fit_leaves_nothing(tmp_path):
    case = oracles.load("untied")
    name = "model.layers.2.ffn.up_b.weight"
    weights = case.weights | {name: case.weights[name] + np.float32(7e4)}
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)

    with pytest.raises(QuantizationError, match=rf"{name} holds a weight of 7e\+04"):
        run(folder, tmp_path / "bundle", FP16, "cuda")

    assert not (tmp_path / "bundle").exists()


def test_an_existing_bundle_is_refused_before_anything_is_written(exported, checkpoint):
    before = contents(exported.folder)

    with pytest.raises(OutputError, match=r"already holds a bundle; replace it with --force$"):
        run(checkpoint, exported.folder)

    assert contents(exported.folder) == before


def test_a_bundle_is_no_source(exported, tmp_path):
    """Rounding what has been rounded loses quality silently."""
    with pytest.raises(CheckpointError, match=r"is an exported bundle \(it has manifest\.json\)"):
        run(exported.folder, tmp_path / "bundle")


def test_a_missing_tokenizer_is_said_before_any_work(tmp_path):
    folder = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "checkpoint")
    (folder / "tokenizer.json").unlink()
    progress = Recording()

    with pytest.raises(CheckpointError, match=r"tokenizer\.json not found"):
        run(folder, tmp_path / "bundle", progress=progress)

    assert progress.stages == []


def test_warnings_of_the_checkpoint_are_passed_on(tmp_path):
    """A temperature without sampling contradicts itself; that is no reason to stop."""
    folder = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "checkpoint")
    edit_json(folder / "generation_config.json", do_sample=False, temperature=0.7)
    progress = Recording()

    run(folder, tmp_path / "bundle", FP32, progress=progress)

    assert len(progress.warnings) == 1
    assert "temperature" in progress.warnings[0]


def test_a_bfloat16_checkpoint_keeps_its_best_tokens(tmp_path):
    """Its numbers are read as what they are, and computed with in float32."""
    case = oracles.load("gqa3")
    half = {n: np.asarray(w, ml_dtypes.bfloat16) for n, w in case.weights.items()}
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", half)
    assert load_file(folder / "model.safetensors")["model.final_norm.weight"].dtype == (
        ml_dtypes.bfloat16
    )

    out = oracles.write_bundle(folder, tmp_path / "bundle", "cpu", FP32)

    with wr.load(out) as model:
        found = model.logits(case.input_ids)
    rounded = {n: np.asarray(w, np.float32) for n, w in half.items()}
    expected, _ = GraphRunner(oracles.semantic(case, rounded)).all_at_once(case.input_ids)
    assert found.dtype == np.float32
    assert distance(found, expected) < 1e-3
    assert np.array_equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize(("target", "form"), [("cpu", INT4), ("portable", INT8), ("cuda", FP16)])
def test_other_targets_pass_their_self_test_here(checkpoint, tmp_path, target, form):
    bundle = run(checkpoint, tmp_path / "bundle", form, target)

    with wr.load(bundle.folder) as model:
        assert model.self_test().passed
    assert bundle.manifest.cache == ("growing" if target == "portable" else "shared")
    assert bundle.manifest.graph.domains == (() if target == "portable" else ("com.microsoft",))


def test_a_folder_moved_and_read_only_still_loads(checkpoint, tmp_path, monkeypatch):
    out = oracles.write_bundle(checkpoint, tmp_path / "old", "cpu", INT8)
    moved = out.rename(tmp_path / "a new name")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved.chmod(0o555)

    try:
        with wr.load(moved) as model:
            assert model.generate([5, 6, 7], max_new_tokens=3).finish_reason == "length"
        with wr.load("../a new name") as model:
            assert model.manifest.precision == "int8"
    finally:
        moved.chmod(0o755)


def test_a_name_comes_from_source_precision_and_target(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    bundle = run(checkpoint, None, FP32, "portable")

    assert str(bundle.folder) == "wiola-checkpoint-fp32-portable"
    assert (tmp_path / bundle.folder / FILE_NAME).is_file()


def test_the_tokenizer_is_copied_byte_for_byte(exported):
    assert (exported.folder / "tokenizer.json").read_text("utf-8") == tokenizer_json()


def test_the_wrong_variant_is_refused(checkpoint, tmp_path):
    source = Source(checkpoint=checkpoint, variant="120m")
    wanted = dataclasses.replace(options(checkpoint, tmp_path / "bundle"), source=source)

    with pytest.raises(OptionError) as caught:
        export(wanted)

    assert str(caught.value) == (
        f"--checkpoint {checkpoint} is not of variant 120m but of a size of its own; drop --variant"
    )


def test_the_manifest_is_sorted_json(exported):
    text = (exported.folder / FILE_NAME).read_text("utf-8")

    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
