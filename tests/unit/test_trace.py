"""The semantic graph as it comes out of the tracer."""

import logging

import onnx
import onnx_ir as ir
import pytest
import torch
from support import oracles
from support.graphs import to_bytes

from wiola_export import trace as tracing
from wiola_export.errors import LoweringError
from wiola_export.families import Family
from wiola_export.functions import DOMAIN
from wiola_export.trace import EXAMPLE_SIZES, trace

CASE = "gqa3"


@pytest.fixture(scope="module")
def graph():
    case = oracles.load(CASE)
    return oracles.shared_trace(case.family, case.config)


def test_a_reader_sees_the_architecture_by_name(graph):
    called = {node.op_type for node in graph.graph if node.domain == DOMAIN}

    assert called == {
        "CausalAttention", "ContextAttention", "GatedBlend", "Linear",
        "RunningMean", "SRPE", "SiLU", "WRMSNorm",
    }  # fmt: skip
    assert {identifier[1] for identifier in graph.functions} == called


def test_gated_spiral_attention_is_seen_by_name():
    case = oracles.load("nano_like")
    graph = oracles.shared_trace(case.family, case.config)

    called = {node.op_type for node in graph.graph if node.domain == DOMAIN}
    assert called == {
        "CausalAttention", "HeadMean", "Linear", "QueryGate", "RMSNorm",
        "RunningMean", "SiLU", "SpiralRotary",
    }  # fmt: skip
    assert {node.domain for node in graph.graph} == {"", DOMAIN}


def test_versions_are_pinned(graph):
    assert graph.ir_version == 10
    assert graph.graph.opset_imports == {"": 21, DOMAIN: 1}


def test_initializers_are_names_and_shapes_without_values(graph):
    case = oracles.load(CASE)

    shapes = {n: tuple(v.shape.numpy()) for n, v in graph.graph.initializers.items()}

    unused = {f"model.layers.0.attn.{n}" for n in ("k_ctx_proj.weight", "v_ctx_proj.weight")}
    expected = {n: w.shape for n, w in case.weights.items() if n not in unused}
    expected.pop("model.layers.0.attn.blend_logit")
    assert {n: s for n, s in shapes.items() if n in expected} == expected
    assert set(shapes) - set(expected) <= unused | {"model.layers.0.attn.blend_logit"}


def test_axes_have_the_names_of_the_contract(graph):
    shapes = {v.name: [str(d) for d in v.shape] for v in graph.graph.inputs}

    assert shapes["input_ids"] == ["B", "T"]
    assert shapes["past_lengths"] == ["B"]
    assert shapes["output_positions"] == ["R"]
    assert shapes["past_key_values.0.key"] == ["B", "2", "P", "16"]
    assert shapes["past_summary.0"] == ["B", "96"]


def test_no_example_size_can_be_mistaken_for_another():
    """Two equal sizes would let the tracer tie two axes; 0 and 1 are special to it."""
    assert len(set(EXAMPLE_SIZES.values())) == len(EXAMPLE_SIZES)
    assert min(EXAMPLE_SIZES.values()) >= 2


def test_the_tracers_own_notes_are_gone(graph):
    """They hold stack traces with the paths of the machine that exported."""
    assert all(not node.metadata_props and node.doc_string is None for node in graph.graph)
    text = to_bytes(oracles.semantic(oracles.load(CASE)))
    assert b"site-packages" not in text
    assert b"/wiola_export/" not in text


@pytest.mark.parametrize("name", [CASE, "nano_like"])
def test_the_semantic_graph_is_a_valid_model(name):
    model = onnx.load_from_string(to_bytes(oracles.semantic(oracles.load(name))))

    onnx.checker.check_model(model, full_check=True)


class Model(torch.nn.Module):
    """Ties its graph to the example in one way or another."""

    def __init__(self, compute) -> None:
        super().__init__()
        self._compute = compute

    def forward(self, input_ids, _past_lengths, output_positions, _states):
        return (self._compute(input_ids.float(), input_ids.shape[1])[:, output_positions, None],)


class NoState:
    def states(self):
        return ()


def branching(x, count):
    return x if count == EXAMPLE_SIZES["T"] else 2 * x


def counting(x, count):
    return x + torch.ones(int(count))[None]


@pytest.mark.parametrize("compute", [branching, counting])
def test_a_frozen_axis_fails_the_export_and_not_the_user(compute):
    family = Family(
        name="frozen",
        marker_keys=frozenset(),
        parse_config=dict,
        variants={},
        build_model=lambda _: Model(compute),
        turn_end=None,
    )

    with pytest.raises(LoweringError) as caught:
        trace(family, NoState())

    message = str(caught.value)
    assert message.startswith("tracing gave input_ids the axes ['")
    assert message.endswith(
        "', 3], expected ['B', 'T']; the model's code must not branch on a size or make a "
        "number of it"
    )


def test_tracing_leaves_the_loggers_as_they_were():
    case = oracles.load("untied")
    logger = logging.getLogger("torch.onnx")
    before = logger.level

    oracles.shared_trace(case.family, case.config)

    assert logger.level == before


def test_no_value_has_two_producers_or_no_type(graph):
    for value in graph.graph.inputs:
        assert value.dtype in (ir.DataType.INT64, ir.DataType.FLOAT)
    names = [v.name for v in oracles.results(graph)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("times", [1, 2])
def test_a_constant_of_unknown_size_is_traced_once_more_and_then_refused(times, monkeypatch):
    good = oracles.shared_trace(oracles.load("mha").family, oracles.load("mha").config)
    bad = good.clone()
    next(iter(bad.graph.initializers.values())).shape = ir.Shape(["T"])
    graphs = iter([bad] * times + [good])
    monkeypatch.setattr(tracing, "_record", lambda *_: next(graphs))
    case = oracles.load("mha")

    if times == 1:
        assert trace(case.family, case.config) is good
    else:
        with pytest.raises(LoweringError, match=r"^tracing made constants of unknown size"):
            trace(case.family, case.config)
