"""Activations in float16, while stream, norms and running sums stay in float32."""

import numpy as np
import onnx_ir as ir

from wiola_export.passes.surgery import Chain, initializer
from wiola_export.weights import initializer_weight

# Kernels that are the reason for the pass, and what must not lose precision.
HALF = {"Linear", "RotaryEmbedding", "SRPE", "SpiralRotary", "GroupQueryAttention"}
FULL = {
    "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization", "WRMSNorm", "RMSNorm",
    "HeadMean", "MomentAttention", "RunningMean", "VarianceFeatures",
}  # fmt: skip
MATRIX_AXES = 2


class HalfPrecision(ir.passes.InPlacePass):
    """Cast around the nodes that compute in float16.

    Before::  y = Skip…Normalization(r, u, γ, b)   z = Linear(y, W)
    After::   y = Skip…Normalization(r, Cast32(u), γ, b)   z = Linear(Cast16(y), W)

    A node computes in float16 where one of `HALF` gave it an input; sums and statistics do not.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk the graph in order, casting each value at most once each way."""
        values = (value for node in model.graph for value in node.outputs)
        if any(value.dtype == ir.DataType.FLOAT16 for value in values):
            return ir.passes.PassResult(model, modified=False)
        _Halving(model.graph).run()
        return ir.passes.PassResult(model, modified=True)


class _Halving:
    """One run over one graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        for node in list(self._graph):
            if node.op_type != "Cast":  # which says its type itself
                self._settle(node)
        for output in list(self._graph.outputs):
            producer = output.producer()
            if producer is not None and producer.op_type == "Linear":  # the logits
                self._widen(producer)

    def _settle(self, node: ir.Node) -> None:
        """Decide in which type a node computes, and cast what it reads."""
        if self._looks_up_weights(node):
            self._widen(node)
        elif node.op_type in HALF or (node.op_type not in FULL and _reads_half(node)):
            self._set_inputs(node, ir.DataType.FLOAT, ir.DataType.FLOAT16)
            for output in node.outputs:
                output.dtype = ir.DataType.FLOAT16
        elif node.op_type in FULL:
            self._set_inputs(node, ir.DataType.FLOAT16, ir.DataType.FLOAT)

    def _looks_up_weights(self, node: ir.Node) -> bool:
        return node.op_type == "Gather" and initializer_weight(node.inputs[0]) is not None

    def _widen(self, node: ir.Node) -> None:
        """Let a node give float16, and its readers float32."""
        old = node.outputs[0]
        name, old.dtype = old.name, ir.DataType.FLOAT16
        chain = Chain(self._graph)
        wide = chain.add("Cast", [old], {"to": int(ir.DataType.FLOAT)})
        wide.dtype, wide.shape = ir.DataType.FLOAT, old.shape
        self._graph.insert_after(node, chain.nodes)
        ir.convenience.replace_all_uses_with(old, wide, replace_graph_outputs=True)
        chain.nodes[0].replace_input_with(0, old)
        old.name, wide.name = f"{name}.half", name

    def _set_inputs(self, node: ir.Node, found: ir.DataType, wanted: ir.DataType) -> None:
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype != found or _is_matrix(value):
                continue
            if value.is_graph_input():
                value.dtype = wanted  # a cache holds what attention computes with
            else:
                node.replace_input_with(index, self._cast(value, wanted, before=node))

    def _cast(self, value: ir.Value, dtype: ir.DataType, *, before: ir.Node) -> ir.Value:
        key = (value, dtype)
        if key not in self._casts:
            if value.const_value is not None:
                array = value.const_value.numpy().astype(dtype.numpy())
                name = f"{value.name}.{np.dtype(dtype.numpy()).name}"
                self._casts[key] = initializer(self._graph, ir.tensor(array, name=name), name)
            else:
                chain = Chain(self._graph)
                cast = chain.add("Cast", [value], {"to": int(dtype)})
                cast.dtype, cast.shape = dtype, value.shape
                self._graph.insert_before(before, chain.nodes)
                self._casts[key] = cast
        return self._casts[key]


def _is_matrix(value: ir.Value) -> bool:
    """Tell a weight matrix: it gets its type when it is stored."""
    weight = initializer_weight(value)
    return weight is not None and len(weight.shape) == MATRIX_AXES


def _reads_half(node: ir.Node) -> bool:
    return any(value is not None and value.dtype == ir.DataType.FLOAT16 for value in node.inputs)
