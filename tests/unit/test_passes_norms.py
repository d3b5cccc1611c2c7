"""Norms with and without offset take the additions of their stream along."""

import collections

import numpy as np
import onnx_ir as ir
import pytest
from support.graphs import distance, run_nodes

from wiola_export.functions import DOMAIN, OPSET, load_function
from wiola_export.passes.fuse_norms import FuseNorms

RANDOM = np.random.default_rng(7)
SIZE = 16
WITH, WITHOUT = "WRMSNorm", "RMSNorm"


def initializer(name):
    tensor = ir.tensor(RANDOM.standard_normal(SIZE).astype(np.float32), name=name)
    value = ir.Value(name=name, shape=ir.Shape([SIZE]), type=ir.TensorType(tensor.dtype))
    value.const_value = tensor
    return value


class Build:
    """A graph of norms and additions on one stream (B, SIZE)."""

    def __init__(self):
        self.inputs, self.nodes, self.initializers = [], [], []

    def input(self, name):
        value = ir.Value(
            name=name, shape=ir.Shape(["B", SIZE]), type=ir.TensorType(ir.DataType.FLOAT)
        )
        self.inputs.append(value)
        return value

    def node(self, op_type, *inputs, attributes=None, domain=""):
        node = ir.node(op_type, inputs, attributes, domain=domain)
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].shape = ir.Shape(["B", SIZE])
        self.nodes.append(node)
        return node.outputs[0]

    def norm(self, op_type, x):
        parts = ("weight", "offset") if op_type == WITH else ("weight",)
        weights = [initializer(f"norm{len(self.nodes)}.{part}") for part in parts]
        self.initializers += weights
        return self.node(op_type, x, *weights, attributes={"epsilon": 1e-6}, domain=DOMAIN)

    def model(self, *outputs):
        for i, output in enumerate(outputs):
            output.name = f"out{i}"
        imports = {"": OPSET, DOMAIN: 1}
        graph = ir.Graph(
            self.inputs,
            outputs,
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports=imports,
            name="norms",
        )
        functions = [load_function(op_type) for op_type in (WITH, WITHOUT)]
        return ir.Model(graph, ir_version=10, functions=functions)


def results(model):
    random = np.random.default_rng(1)
    rows = {
        i.name: random.standard_normal((3, SIZE)).astype(np.float32) for i in model.graph.inputs
    }
    return run_nodes(model, rows)


def stream_of(kinds):
    """Add each norm's result, turned by its sine, to the stream; return the norms and the end."""
    build = Build()
    x, normed = build.input("x"), []
    for kind in kinds:
        normed.append(build.norm(kind, x))
        x = build.node("Add", x, build.node("Sin", normed[-1]))
    return build.model(*normed, x)


@pytest.mark.parametrize("kinds", [
    (WITHOUT,) * 3,
    (WITH,) * 3,
    (WITH, WITHOUT, WITHOUT, WITH),
    (WITHOUT, WITH, WITHOUT),
])  # fmt: skip
def test_any_order_of_norms_gives_the_same_numbers(kinds):
    model = stream_of(kinds)
    before = results(model)

    FuseNorms()(model)

    census = collections.Counter(node.op_type for node in model.graph)
    assert census[WITH] == census[WITHOUT] == 0
    assert census["SkipSimplifiedLayerNormalization"] == len(kinds) - 1
    for found, expected in zip(results(model), before, strict=True):
        assert distance(found, expected) < 1e-5


def test_norms_without_offset_leave_no_other_node():
    model = stream_of((WITHOUT,) * 3)

    FuseNorms()(model)

    # The last addition has no norm behind it.
    assert collections.Counter(node.op_type for node in model.graph) == {
        "SimplifiedLayerNormalization": 1, "SkipSimplifiedLayerNormalization": 2,
        "Sin": 3, "Add": 1,
    }  # fmt: skip
    skips = [n for n in model.graph if n.op_type == "SkipSimplifiedLayerNormalization"]
    assert [len(node.inputs) for node in skips] == [3, 3]


def test_a_norm_of_something_else_in_between_does_not_break_the_stream():
    """As where a layer norms a difference as well as its stream."""
    build = Build()
    x, other = build.input("x"), build.input("other")
    first = build.norm(WITHOUT, x)
    aside = build.norm(WITHOUT, build.node("Sub", x, other))
    last = build.norm(WITHOUT, build.node("Add", x, build.node("Sin", first)))
    model = build.model(first, aside, last)
    before = results(model)

    FuseNorms()(model)

    census = collections.Counter(node.op_type for node in model.graph)
    assert census["SkipSimplifiedLayerNormalization"] == 1
    assert census["Add"] == 0
    for found, expected in zip(results(model), before, strict=True):
        assert distance(found, expected) < 1e-5


def test_a_second_run_changes_nothing():
    model = stream_of((WITHOUT, WITH))

    assert FuseNorms()(model).modified
    assert not FuseNorms()(model).modified
