"""A calibrated model is the one that its stored weights make, and is closer to the float one.

Axes: W windows, T tokens of a window, N rows, K input features.
"""

import contextlib
import dataclasses
import functools
from unittest import mock

import numpy as np
import pytest
import torch
from support import oracles
from support.checkpoint_folder import edit_json
from support.graphs import ALL_LEVELS, GraphRunner, distance
from support.progress import Recording

from wiola_export import pipeline
from wiola_export.calibrate import hidden
from wiola_export.calibrate.calibration import calibrate
from wiola_export.errors import QuantizationError
from wiola_export.evaluate.stored_weights import open_matrices
from wiola_export.options import ExportOptions, Quantization, Source
from wiola_export.prepare import Prepared, make_policy
from wiola_export.progress import Silent
from wiola_export.quantize.formats import Blocks, Floats
from wiola_export.quantize.rounded import Rounding
from wiola_export.quantize.rounding import round_blocks, round_matrix
from wiola_export.reference import open_executor, read_tensor
from wiola_export.serialize import write_model
from wiola_export.source import find_model
from wiola_export.weights import whole

METHODS = ("gptq", "awq", "awq-gptq")
IN_FLOATS = ALL_LEVELS[1]  # beyond it, ONNX Runtime fuses portable blocks and rounds activations
every_method = pytest.mark.parametrize("method", METHODS)
INT4 = Quantization(precision="int4", method="gptq")


@pytest.fixture(scope="module")
def open_case(tmp_path_factory):
    """Return a function from the name of a case to its model, written once."""

    @functools.cache
    def opened(name, grouping=None):
        folder = tmp_path_factory.mktemp(name) / "checkpoint"
        oracles.write_checkpoint(oracles.load(name), folder)
        if grouping:
            edit_json(folder / "config.json", gqa_grouping=grouping)
        return find_model(Source(checkpoint=folder))

    return opened


def windows_of(name, count=6):
    """Return windows (W, 40) of the case's own ids and others."""
    vocabulary = oracles.load(name).config.vocab_size
    return np.random.default_rng(7).integers(8, vocabulary, (count, 40))


@contextlib.contextmanager
def calibrated(model, windows, quantization, folder, planned=None, target="portable"):
    """Calibrate, as an export does between opening the text and building the graph."""
    policy = make_policy(quantization, target)
    policy = dataclasses.replace(policy, planned=planned or {})
    folder.mkdir()
    done = calibrate(model, windows, quantization.method, policy, folder, Silent())
    rounding = Rounding(round_blocks, done.rounded)
    yield Prepared(policy=dataclasses.replace(policy, rounding=rounding), factors=done.factors)


def rounded(prepared):
    """Return the weights that calibration has rounded, by name."""
    return prepared.policy.rounding._rounded


def graph_of(model, prepared, target, quantization=INT4):
    source = Source(checkpoint=model.checkpoint.folder)
    options = ExportOptions(source=source, quantization=quantization, target=target)
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        return pipeline.build_graph(model, options, Silent(), prepared)


def dequantized(model, prepared, name):
    """Return a tensor as a bundle multiplies with it."""
    weight, known = whole(prepared.weight(model, name)), rounded(prepared)
    if name in known:
        return known[name].read(0, known[name].rows).matrix(weight.shape[1])
    if weight.ndim != 2:
        return weight
    role = "matrix" if ".layers." in name else "embedding"
    form = prepared.policy.decide(role, weight.shape[1], name).form
    return (
        round_matrix(weight, form).matrix(weight.shape[1]) if isinstance(form, Blocks) else weight
    )


def torch_logits(model, prepared, ids):
    """Return logits (W, T, V) of the torch modules on dequantized weights."""
    executor = open_executor(
        model, lambda name: torch.from_numpy(dequantized(model, prepared, name))
    )
    return np.concatenate(list(executor.logits(ids)))


@pytest.mark.parametrize(
    ("method", "name", "grouping", "form"),
    [
        ("gptq", "gqa3", "interleaved", {"symmetric": True}),
        ("awq-gptq", "gqa3", "interleaved", {"block_size": 64}),
        ("awq", "odd_sizes", None, {}),
        ("awq-gptq", "odd_sizes", None, {}),
        ("gptq", "untied", None, {"block_size": 128}),
        ("awq-gptq", "nano_like", None, {}),
        ("gptq", "wide_ffn", None, {"block_size": 64}),
    ],
)
def test_the_graph_computes_with_the_weights_that_were_found(
    open_case, tmp_path, method, name, grouping, form
):
    """Packed, folded, rescaled, heads in another order, blocks that are not full."""
    model, ids = open_case(name, grouping), oracles.load(name).input_ids
    quantization = Quantization(precision="int4", method=method, **form)
    with calibrated(model, windows_of(name), quantization, tmp_path / "c") as prepared:
        graph, _ = graph_of(model, prepared, "portable", quantization)

        logits, _ = GraphRunner(graph, level=IN_FLOATS).all_at_once(ids)

        assert distance(logits, torch_logits(model, prepared, ids)) < 1e-3


def test_a_planned_format_is_kept_by_calibration(open_case, tmp_path):
    """Floats stay, and are rescaled with the others; eight bits are rounded as such.

    A table of four bits has eight on a target that could not look up in it.
    """
    model, ids = open_case("gqa3"), oracles.load("gqa3").input_ids
    kept, finer = "model.layers.1.attn.v_proj.weight", "model.layers.2.ffn.down_b.weight"
    table = "model.embed_tokens.weight"
    planned = {
        kept: Floats("float32"),
        finer: Blocks(bits=8, block_size=32),
        table: Blocks(bits=4, block_size=32),
    }
    quantization = Quantization(precision="int4", method="awq-gptq")

    with calibrated(
        model, windows_of("gqa3"), quantization, tmp_path / "c", planned=planned
    ) as prepared:
        graph, stored = graph_of(model, prepared, "portable", quantization)
        logits, _ = GraphRunner(graph, level=IN_FLOATS).all_at_once(ids)

        assert kept not in rounded(prepared)
        assert rounded(prepared)[finer].form.bits == 8
        assert table not in rounded(prepared)
        assert distance(logits, torch_logits(model, prepared, ids)) < 1e-3
    notes = {tensor.sources: tensor.note for tensor in stored}
    bits = {tensor.sources: tensor.bits for tensor in stored}
    assert notes[(kept,)] == "kept: the plan says so"
    assert bits[(table,)] == 8


@pytest.mark.parametrize("method", ["gptq", "awq-gptq"])
def test_a_bundle_holds_the_codes_that_were_found(open_case, tmp_path, method):
    """Every row of every matrix and of a coarse table, as it is read back from the file."""
    model, planned = open_case("gqa3"), {"model.embed_tokens.weight": Blocks(bits=4, block_size=32)}
    quantization = Quantization(precision="int4", method=method)
    with calibrated(
        model, windows_of("gqa3"), quantization, tmp_path / "c", planned, "cpu"
    ) as prepared:
        graph, stored = graph_of(model, prepared, "cpu", quantization)
        folder = tmp_path / "bundle"
        folder.mkdir()
        write_model(graph, folder, Silent())
        matrices = open_matrices(folder / "model.onnx", tuple(stored))

        for spec in stored:
            parts = [dequantized(model, prepared, source) for source in spec.sources]
            expected = np.concatenate(parts)
            found = matrices[spec.name].rows(0, spec.shape[0])
            # A folded blend is one factor for all rows of a weight.
            for part in np.split(np.arange(len(expected)), np.cumsum([len(p) for p in parts])[:-1]):
                factor = np.abs(found[part]).sum() / np.abs(expected[part]).sum()
                np.testing.assert_allclose(found[part], factor * expected[part], atol=1e-5)


@every_method
def test_every_executed_matrix_is_rounded_by_calibration(open_case, tmp_path, method):
    """All but the tables, and the context projections of layer 0, which are never run."""
    model = open_case("gqa3")
    matrices = {n for n, shape in model.config.tensor_shapes().items() if len(shape) == 2}
    unused = {f"model.layers.0.attn.{part}_ctx_proj.weight" for part in "kv"}

    with calibrated(
        model, windows_of("gqa3", 2), Quantization(precision="int4", method=method), tmp_path / "c"
    ) as prepared:
        assert set(rounded(prepared)) == matrices - unused - {"model.embed_tokens.weight"}


def test_a_gate_of_short_rows_is_left_alone_by_calibration(open_case, tmp_path):
    model = open_case("wide_ffn")
    matrices = {n for n, shape in model.config.tensor_shapes().items() if len(shape) == 2}
    gates = {name for name in matrices if "gate_fc" in name}

    with calibrated(model, windows_of("wide_ffn", 2), INT4, tmp_path / "c") as prepared:
        assert set(rounded(prepared)) == matrices - gates - {"model.embed_tokens.weight"}
        _, stored = graph_of(model, prepared, "cpu")

    notes = {tensor.name: tensor.note for tensor in stored if "gate_fc" in tensor.name}
    assert set(notes) == gates
    assert set(notes.values()) == {
        "kept: rows of 16 features are too short to pay",
        "kept: rows of 6 features are too short to pay",
    }


def errors_on(model, windows, tmp_path, methods):
    """Return the mean squared error of the logits on some windows, by method."""
    expected = np.concatenate(
        list(open_executor(model, lambda name: read_tensor(model, name)).logits(windows))
    )
    nearest = Prepared(policy=make_policy(INT4, "portable"))
    found = {"nearest": np.square(torch_logits(model, nearest, windows) - expected).mean()}
    for method in methods:
        quantization = Quantization(precision="int4", method=method)
        with calibrated(model, windows, quantization, tmp_path / method) as prepared:
            found[method] = np.square(torch_logits(model, prepared, windows) - expected).mean()
    return found


@pytest.mark.parametrize("name", ["odd_sizes", "untied"])
def test_calibrating_pays_on_the_text_that_was_seen(open_case, tmp_path, name):
    """Measured: of the squared error GPTQ leaves 6 to 8 %, and AWQ, on random weights, all."""
    errors = errors_on(open_case(name), windows_of(name), tmp_path, ["gptq"])

    assert errors["gptq"] < 0.2 * errors["nearest"]


def codes_by_name(prepared):
    return {n: w.read(0, w.rows) for n, w in rounded(prepared).items()}


def test_files_windows_in_groups_and_repetition_change_nothing(open_case, tmp_path, monkeypatch):
    model, windows = open_case("gqa3"), windows_of("gqa3", 17)
    with calibrated(model, windows, INT4, tmp_path / "memory") as prepared:
        expected = codes_by_name(prepared)

    monkeypatch.setattr(hidden.HiddenStates.__init__, "__defaults__", (0,))
    with calibrated(model, windows, INT4, tmp_path / "files") as prepared:
        found = codes_by_name(prepared)

    assert found.keys() == expected.keys()
    assert len(list((tmp_path / "files").rglob("group-*.npy"))) == 2 * 3
    for name, codes in expected.items():
        for part in ("codes", "scales", "zero_points"):
            np.testing.assert_array_equal(getattr(found[name], part), getattr(codes, part))


def test_what_the_float_model_cannot_compute_is_refused(tmp_path):
    """A norm that overflows in layer 2 shows itself at the first matrix that reads it."""
    case = oracles.load("untied")
    name = "model.layers.2.input_norm.weight"
    weights = case.weights | {name: np.full_like(case.weights[name], 3e38)}
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)
    model = find_model(Source(checkpoint=folder))

    with pytest.raises(QuantizationError, match=r"^the inputs of a matrix are not finite in the "):
        with calibrated(model, windows_of("untied"), INT4, tmp_path / "c"):
            pass


def test_a_float16_scale_that_overflows_names_its_weight(tmp_path):
    """Better than an infinity in the file; --int8 would do."""
    case = oracles.load("untied")
    name = "model.layers.1.ffn.gate_a.weight"
    weights = case.weights | {name: case.weights[name] * np.float32(1e8)}
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)
    model = find_model(Source(checkpoint=folder))

    with pytest.raises(QuantizationError, match=rf"^{name} has a scale beyond float16; check the"):
        with calibrated(model, windows_of("untied"), INT4, tmp_path / "c", target="cuda"):
            pass


def test_layers_are_told_as_they_are_done(open_case, tmp_path):
    progress, model = Recording(), open_case("untied")
    folder = tmp_path / "c"
    folder.mkdir()

    calibrate(model, windows_of("untied", 1), "gptq", make_policy(INT4, "cpu"), folder, progress)

    assert progress.items == progress.total == 3
