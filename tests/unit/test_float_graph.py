"""The graph with float weights is the export's own, before anything is rounded."""

import pytest
from support import float_graphs, oracles

from wiola_export.options import Quantization, Source
from wiola_export.source import find_model
from wiola_export.weights import whole
from wiola_runtime.manifest import Manifest


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("float_graph") / "checkpoint"
    return oracles.write_checkpoint(oracles.load("untied"), folder)


@pytest.fixture(scope="module")
def model(checkpoint):
    return find_model(Source(checkpoint=checkpoint))


def test_what_is_written_is_the_bundle_of_an_export_in_float32(checkpoint, model, tmp_path):
    exported = oracles.write_bundle(
        checkpoint, tmp_path / "exported", "cpu", Quantization(precision="fp32")
    )
    graph = float_graphs.build(model, "cpu")
    (tmp_path / "written").mkdir()

    graph.write(tmp_path / "written")

    assert {p.name: p.read_bytes() for p in exported.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "written").iterdir()
    }
    written_bytes = (tmp_path / "written" / "model.onnx.data").stat().st_size
    assert written_bytes == pytest.approx(graph.size_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("target", "precision"), [("cpu", "fp32"), ("portable", "fp32"), ("cuda", "fp16")]
)
def test_a_target_has_the_floats_that_it_can_run(model, target, precision):
    assert float_graphs.build(model, target).precision == precision


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_whatever_a_bundle_stores_has_its_float_weight(checkpoint, model, target, tmp_path):
    """Fused with others or not."""
    quantization = Quantization(precision="int4")
    folder = oracles.write_bundle(checkpoint, tmp_path / "bundle", target, quantization)
    stored = Manifest.read(folder).quantization.tensors

    weights = float_graphs.build(model, target).weights

    assert set(weights) == {source for tensor in stored for source in tensor.sources}
    shapes = model.config.tensor_shapes()
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: shapes[name] for name in weights
    }
    head = "lm_head.weight"
    assert (whole(weights[head]) == model.checkpoint.read(head)).all()
