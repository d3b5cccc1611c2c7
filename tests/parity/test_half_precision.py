"""Float16 on extreme activations: statistics in float32, and nothing infinite on the way."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support import oracles
from support.graphs import GraphRunner, distance, to_bytes

from wiola_export.options import Quantization

CHANNEL, FACTOR = 5, 800
FORMS = [Quantization(precision="fp16"), Quantization(precision="int8")]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.precision)


def extreme():
    """Return an untied case whose residual stream has one channel 800 times as large."""
    case = oracles.load("untied")
    table = case.weights["model.embed_tokens.weight"].copy()
    table[:, CHANNEL] *= FACTOR
    return case, case.weights | {"model.embed_tokens.weight": table}


def probe(model):
    """Return a session whose outputs are all values of the graph, and their names."""
    proto = onnx.load_from_string(to_bytes(model))
    known = {output.name for output in proto.graph.output}
    names = [n for node in proto.graph.node for n in node.output if n and n not in known]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options)


def test_the_channel_is_beyond_the_square_root_of_float16():
    _, weights = extreme()

    largest = np.abs(weights["model.embed_tokens.weight"]).max()

    assert largest**2 > 65504


@every_form
def test_every_value_on_the_way_is_finite(form):
    case, weights = extreme()
    model, _ = oracles.lowered(case, "cuda", form, weights)
    session, ids = probe(model), case.input_ids[:, :24]

    feed = {
        "input_ids": ids,
        "past_lengths": np.zeros(2, np.int64),
        "output_positions": np.arange(24),
        **GraphRunner(model).empty(2),
    }
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, feed), strict=True))

    floats = {n: v for n, v in found.items() if v.dtype in (np.float16, np.float32)}
    assert len(floats) > 100
    assert [n for n, v in floats.items() if not np.isfinite(v).all()] == []


@every_form
def test_the_result_is_that_of_float32(form):
    case, weights = extreme()
    model, _ = oracles.lowered(case, "cuda", form, weights)

    found, _ = GraphRunner(model).all_at_once(case.input_ids)

    expected, _ = GraphRunner(oracles.semantic(case, weights)).all_at_once(case.input_ids)
    assert distance(found, expected) < (0.1 if form.is_float else 1.0)
    assert (found.argmax(-1) == expected.argmax(-1)).mean() > 0.95


@pytest.mark.parametrize("logit", [5.9, 6.1])
def test_a_strong_blend_keeps_its_precision(logit):
    """Folded into the weights it makes them small; a stronger one stays a call."""
    case = oracles.load("gqa3")
    blends = {n: np.asarray(logit, np.float32) for n in case.weights if n.endswith("logit")}
    weights = case.weights | blends
    model, _ = oracles.lowered(case, "cuda", Quantization(precision="int8"), weights)
    plain, _ = oracles.lowered(case, "cpu", Quantization(precision="int8"), weights)

    found, _ = GraphRunner(model).all_at_once(case.input_ids)

    expected, _ = GraphRunner(oracles.semantic(case, weights)).all_at_once(case.input_ids)
    with_float_scales, _ = GraphRunner(plain).all_at_once(case.input_ids)
    error = np.sqrt(((found - expected) ** 2).mean())
    assert error < 1.5 * np.sqrt(((with_float_scales - expected) ** 2).mean())
