"""Everything that looks at a text works on a trained model of the second family as well."""

import json
import os
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import oracles
from support.command_line import refused

import wiola_runtime as wr
from wiola_calibration.corpus import packaged_text
from wiola_export import pipeline
from wiola_export.cli import main
from wiola_export.families import find_variant
from wiola_export.options import (
    Budget,
    CalibrationOptions,
    ExportOptions,
    Quantization,
    Source,
)
from wiola_export.study import worker
from wiola_export.study.grid import pick
from wiola_export.study.runner import Study
from wiola_export.weights import RandomSource

pytestmark = pytest.mark.slow

DEMO = Source(variant="demo-gsa")
FEW, NONE = CalibrationOptions(windows=4), CalibrationOptions(source="none")
GATES = {f"model.layers.{i}.self_attn.gate_fc{j}.weight" for i in range(6) for j in (1, 2)}
NOTES = {f"kept: rows of {features} features are too short to pay" for features in (5, 32)}
BITS = 5.5


@pytest.fixture(autouse=True, scope="module")
def _trace_once():
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a file with the beginning of a packaged text: a few windows."""
    path = tmp_path_factory.mktemp("text") / "austen.txt"
    path.write_text(packaged_text("austen").path.read_text("utf-8")[:12_000], "utf-8")
    return path


def export(out, precision, *, calibration=FEW, scheme=None, **changes):
    return pipeline.export(
        ExportOptions(
            source=changes.pop("source", DEMO),
            quantization=Quantization(precision=precision, scheme=scheme),
            calibration=calibration,
            out=out,
            **({"report": False} | changes),
        )
    )


def kept(bundle):
    return {t.name: t.note for t in bundle.manifest.quantization.tensors if t.bits > 8}


@pytest.fixture(scope="module")
def planned(tmp_path_factory, text):
    """Return a bundle calibrated by GPTQ with bits given by sensitivity, and its report."""
    out = tmp_path_factory.mktemp("planned") / "bundle"
    budget = Budget(bits_per_weight=BITS)
    return export(out, "int4", budget=budget, report=True, text=text)


def test_bits_are_spent_on_all_but_the_gates(planned):
    stored = [t for t in planned.manifest.quantization.tensors if t.name not in GATES]
    weights = sum(np.prod(t.shape) for t in stored if t.size_bytes)

    assert {t.bits for t in stored} == {4, 8}
    assert 8 * sum(t.size_bytes for t in stored) / weights <= BITS
    assert set(kept(planned)) == GATES
    assert set(kept(planned).values()) == NOTES


def test_the_report_says_what_every_matrix_costs(planned):
    figures = {tensor.name: tensor for tensor in planned.report.tensors}

    assert all(figures[name].bits == 32 for name in GATES)
    rounded = [tensor for name, tensor in figures.items() if name not in GATES]
    assert all(tensor.sensitivity_nats > 0 for tensor in rounded)
    assert all(tensor.relative_error > 0 for tensor in rounded)
    assert planned.report.accuracy.drop.kl_nats.mean < 0.05


def test_a_report_finds_the_demo_that_a_bundle_is_of(planned, text, capsys):
    assert main(["report", str(planned.folder), "--text", str(text), "--quiet", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["kl_nats"]["mean"] == planned.report.accuracy.drop.kl_nats.mean


def test_bundles_of_two_demos_are_not_compared(planned, demo_int8, capsys):
    message = refused(capsys, "report", planned.folder, demo_int8)

    assert message.startswith(f"{demo_int8} was made from checkpoint ")
    assert "wiola_export/demo-gsa is " in message


def test_its_plan_can_be_given_back(planned, tmp_path):
    budget = Budget(plan=planned.folder / "plan.json")

    again = export(tmp_path / "again", "int4", calibration=NONE, budget=budget)

    def bits(bundle):
        return {t.name: (t.bits, t.block_size) for t in bundle.manifest.quantization.tensors}

    assert bits(again) == bits(planned)


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_gates_stay_float_beside_8_bit_activations(tmp_path, scheme):
    bundle = export(tmp_path / "bundle", "int8", scheme=scheme)

    assert set(kept(bundle)) == GATES
    assert set(kept(bundle).values()) == NOTES


def test_keys_and_values_fit_8_bits(tmp_path):
    bundle = export(tmp_path / "bundle", "int8", int8_cache=True)

    kinds = {state.kind: state.dtype for state in bundle.manifest.states}
    assert kinds == {"cache": "int8", "sum": "float32"}


def test_a_cell_of_a_study_is_done(tmp_path, text):
    study = Study(source=DEMO, cells=pick("int8-nearest-64"), out=tmp_path, text=text)

    outcome = worker.do(study.tasks()[0])

    assert outcome.error is None
    assert outcome.figures.kl_nats < 1e-3


def test_the_published_tokenizer_on_random_weights_of_its_size(tmp_path):
    """Context 512, pad 3, and a tokenizer that names no length."""
    if "WIOLA_TEST_DATA" not in os.environ:
        pytest.skip("WIOLA_TEST_DATA, the folder that holds published/, is not set")
    published = Path(os.environ["WIOLA_TEST_DATA"]) / "published" / "wiola-13m"
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in published.glob("*.json"):
        shutil.copyfile(path, folder / path.name)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    assert settings["model_max_length"] > 1e29
    _, config = find_variant("nano")
    source = RandomSource(config.tensor_shapes(), config.initial_values(), 0)
    weights = {
        name: source.read_rows(name, 0, shape[0]).astype(np.float16)
        for name, shape in config.tensor_shapes().items()
    }
    save_file(weights, folder / "model.safetensors")

    checkpoint = Source(checkpoint=folder)
    bundle = export(tmp_path / "bundle", "int8", source=checkpoint, calibration=NONE)

    manifest = bundle.manifest
    assert (manifest.family, manifest.variant, manifest.context_length) == ("gsa", "nano", 512)
    assert (manifest.tokens.bos_id, manifest.tokens.eos_ids, manifest.tokens.pad_id) == (1, (2,), 3)
    assert manifest.generation_defaults["temperature"] == 0.8
    with wr.load(bundle.folder) as model:
        assert model.self_test().passed
        reply = model.generate("Once upon a time", max_new_tokens=4, temperature=0.0)
    assert len(reply.token_ids) == 4
