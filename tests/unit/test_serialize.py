"""The two files of a graph: what lies where, once, and the same bytes every time."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.external_data_helper import uses_external_data
from support import oracles
from support.graphs import GraphRunner, distance

from wiola_export.options import Quantization
from wiola_export.progress import Silent
from wiola_export.serialize import DATA_FILE, LINE, MODEL_FILE, PAGE, stored_bytes, write_model

FORMS = [
    ("cpu", Quantization(precision="fp32")),
    ("cpu", Quantization(precision="int8")),
    ("cpu", Quantization(precision="int4", symmetric=True)),
    ("cuda", Quantization(precision="int4")),
    ("portable", Quantization(precision="int4")),
]
every_form = pytest.mark.parametrize(
    ("target", "form"), FORMS, ids=[f"{t}-{f.precision}" for t, f in FORMS]
)
INT8 = Quantization(precision="int8")


def write(folder, name="gqa3", target="cpu", form=INT8):
    graph, stored = oracles.lowered(oracles.load(name), target, form)
    write_model(graph, folder, Silent())
    return graph, stored


def places(folder):
    """Return file, offset and length of every tensor that lies outside the graph."""
    proto = onnx.load(folder / MODEL_FILE, load_external_data=False)
    found = {}
    for tensor in proto.graph.initializer:
        if uses_external_data(tensor):
            entries = {entry.key: entry.value for entry in tensor.external_data}
            at = int(entries["offset"]), int(entries["length"])
            found[tensor.name] = (entries["location"], *at)
    return found


@every_form
def test_data_lies_beside_the_graph_under_a_bare_name(tmp_path, target, form):
    write(tmp_path, target=target, form=form)

    assert {location for location, _, _ in places(tmp_path).values()} == {DATA_FILE}
    assert sorted(p.name for p in tmp_path.iterdir()) == [MODEL_FILE, DATA_FILE]
    assert (tmp_path / MODEL_FILE).stat().st_size < 300_000


@every_form
def test_tensors_are_aligned_and_do_not_overlap(tmp_path, target, form):
    write(tmp_path, target=target, form=form)

    end = 0
    for _, offset, length in sorted(set(places(tmp_path).values())):
        assert offset >= end
        assert offset % (PAGE if length >= PAGE else LINE) == 0
        end = offset + length
    assert end == (tmp_path / DATA_FILE).stat().st_size


@every_form
def test_the_needed_bytes_are_known_beforehand(tmp_path, target, form):
    graph, _ = oracles.lowered(oracles.load("gqa3"), target, form)
    announced = stored_bytes(graph.graph)

    write_model(graph, tmp_path, Silent())

    spans = set(places(tmp_path).values())
    inline = announced - sum(length for _, _, length in spans)
    assert 0 <= inline < 40_000
    gaps = (tmp_path / DATA_FILE).stat().st_size - sum(length for _, _, length in spans)
    assert 0 <= gaps < PAGE * len(spans)


@every_form
def test_the_listed_sizes_are_those_in_the_file(tmp_path, target, form):
    """What the manifest says about each weight adds up to the weights."""
    _, stored = write(tmp_path, target=target, form=form)

    weights = {place for name, place in places(tmp_path).items() if ".weight." in name}
    inline = [
        tensor
        for tensor in onnx.load(tmp_path / MODEL_FILE, load_external_data=False).graph.initializer
        if ".weight." in tensor.name and not uses_external_data(tensor)
    ]
    assert not inline
    assert sum(t.size_bytes for t in stored) == sum(length for _, _, length in weights)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_head_and_embedding_read_the_same_bytes(tmp_path, target, precision):
    """Two tensors of other shapes over one place in the file."""
    write(tmp_path, target=target, form=Quantization(precision=precision))

    found = places(tmp_path)

    embedding = found["model.embed_tokens.weight.codes.rows"]
    assert embedding == found["model.embed_tokens.weight.codes"]
    assert embedding[2] == 320 * 96
    proto = onnx.load(tmp_path / MODEL_FILE, load_external_data=False)
    dims = {t.name: list(t.dims) for t in proto.graph.initializer}
    block = 16 if precision == "int8" else 32
    assert dims["model.embed_tokens.weight.codes"] == [320, 96 // block, block]
    assert dims["model.embed_tokens.weight.codes.rows"] == [320, 96]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_tied_table_is_stored_once_in_the_file(tmp_path, precision):
    case = oracles.load("gqa3")
    write(tmp_path, form=Quantization(precision=precision))

    table = case.weights["model.embed_tokens.weight"]
    per_weight = 4 if precision == "fp32" else 1 + 5 / 16  # blocks of 16: scale, zero point
    spans = {place for name, place in places(tmp_path).items() if "embed_tokens" in name}
    assert sum(length for _, _, length in spans) <= 1.05 * table.size * per_weight


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_onnx_runtime_multiplies_by_the_codes_of_a_portable_graph(tmp_path, precision):
    """A product that it left to DequantizeLinear would take tens of times as long."""
    write(tmp_path, target="portable", form=Quantization(precision=precision))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(tmp_path / MODEL_FILE, options)

    found = Counter(node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph)

    stored = Counter(node.op_type for node in ir.load(tmp_path / MODEL_FILE).graph)
    assert found["MatMulNBits"] == stored["DequantizeLinear"] - 1  # that of the lookup
    assert found["DequantizeLinear"] == 1


def test_an_untied_head_has_bytes_of_its_own(tmp_path):
    write(tmp_path, name="untied")

    found = places(tmp_path)

    assert found["lm_head.weight.codes"] != found["model.embed_tokens.weight.codes.rows"]


@every_form
def test_the_same_graph_gives_the_same_bytes(tmp_path, target, form):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()

    write(first, target=target, form=form)
    write(second, target=target, form=form)

    for name in (MODEL_FILE, DATA_FILE):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_other_weights_give_other_bytes_in_the_same_graph(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    case = oracles.load("gqa3")
    weights = case.weights | {"model.layers.3.ffn.up_b.weight": np.ones((384, 96), np.float32)}

    write(first)
    write_model(oracles.lowered(case, "cpu", INT8, weights)[0], second, Silent())

    assert (first / MODEL_FILE).read_bytes() == (second / MODEL_FILE).read_bytes()
    assert (first / DATA_FILE).read_bytes() != (second / DATA_FILE).read_bytes()


def test_the_files_run_after_a_move_from_anywhere(tmp_path, monkeypatch):
    """Renamed, read-only, and with another working directory."""
    case = oracles.load("gqa3")
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", form=Quantization(precision="fp32"))
    moved = (tmp_path / "old").rename(tmp_path / "new name")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved.chmod(0o555)

    try:
        found, _ = GraphRunner(str(moved / MODEL_FILE)).all_at_once(case.input_ids)
        relative = Path(os.path.relpath(moved / MODEL_FILE))
        again, _ = GraphRunner(str(relative)).all_at_once(case.input_ids)
    finally:
        moved.chmod(0o755)

    assert distance(found, case.logits) < 1e-3
    assert np.array_equal(found, again)


def test_the_standard_four_bit_type_holds_the_codes(tmp_path):
    """The bytes of the file are ONNX's own packing: any reader unpacks them."""
    write(tmp_path, target="portable", form=Quantization(precision="int4"))

    proto = onnx.load(tmp_path / MODEL_FILE)

    name = "model.layers.0.ffn.up_b.weight"
    codes, scales, zero_points = (
        onnx.numpy_helper.to_array(t).astype(np.float32)
        for role in ("codes", "scales", "zero_points")
        for t in proto.graph.initializer
        if t.name == f"{name}.{role}"
    )
    weight = oracles.load("gqa3").weights[name]
    steps = codes.T.reshape(384, 3, 32) - zero_points.T[..., None]
    error = np.abs((steps * scales.T[..., None]).reshape(384, 96) - weight)
    assert codes.max() == 15
    assert error.max() < np.abs(scales).max() * 2.5
    assert error.mean() < np.abs(scales).mean() / 2
