"""The few moves that every rewrite is made of: typed nodes, constants, replacement."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from wiola_export.functions import DOMAIN

MICROSOFT = "com.microsoft"

Attributes = Mapping[str, int | float | str | Sequence[int]]


class Chain:
    """New nodes in the order in which they compute, for one replacement."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.nodes: list[ir.Node] = []

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Value:
        """Append a node and return its first output."""
        return self.add_many(op_type, inputs, attributes, domain=domain, outputs=outputs)[0]

    def add_many(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> Sequence[ir.Value]:
        """Append a node and return all its outputs; their type is the first input's."""
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs)
        if domain:
            self.graph.opset_imports.setdefault(domain, 1)
        first = next((value for value in inputs if value is not None), None)
        for output in node.outputs:
            same_type(output, first)
        self.nodes.append(node)
        return node.outputs

    def ints(self, *values: int) -> ir.Value:
        """Return an int64 constant of one axis, shared by all who ask for the same numbers."""
        name = "ints." + "_".join(map(str, values))
        return constant(self.graph, name, np.array(values, np.int64))

    def replace(self, old: Sequence[ir.Node], outputs: Mapping[ir.Value, ir.Value]) -> None:
        """Put the chain where the last of the `old` nodes stands and hand its results on."""
        for before, after in outputs.items():
            same_type(after, before)
        ir.convenience.replace_nodes_and_values(
            self.graph, old[-1], old, self.nodes, list(outputs), list(outputs.values())
        )


def same_type(value: ir.Value, other: ir.Value | None) -> None:
    """Give a value the element type of another, where that is known."""
    if other is not None and other.dtype is not None:
        value.dtype = other.dtype


def constant(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    """Return the initializer of that name, made from `array` where the graph has none."""
    if name in graph.initializers:
        return graph.initializers[name]
    return initializer(graph, ir.tensor(array, name=name), name)


def initializer(graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """Register a tensor as an initializer."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype))
    value.const_value = tensor
    graph.register_initializer(value)
    return value


def nodes_of(model: ir.Model, op_type: str, domain: str = "") -> list[ir.Node]:
    """Return the nodes of the main graph with that operator, in order."""
    return [n for n in model.graph if n.op_type == op_type and n.domain == domain]


def calls(model: ir.Model, op_type: str) -> list[ir.Node]:
    """Return the calls of one `wiola` operator in the main graph, in order."""
    return nodes_of(model, op_type, DOMAIN)


def integer(node: ir.Node, name: str) -> int:
    """Return an integer attribute."""
    return node.attributes[name].as_int()


def operand(node: ir.Node, index: int) -> ir.Value:
    """Return an input that must be there."""
    value = node.inputs[index]
    assert value is not None, f"{node.op_type} lacks input {index}"
    return value


def static_dim(value: ir.Value, axis: int) -> int:
    """Return a dimension that must be known."""
    assert value.shape is not None, f"{value.name} has no shape"
    size = value.shape[axis]
    assert isinstance(size, int), f"axis {axis} of {value.name} is not fixed: {size}"
    return size


def small_array(value: ir.Value) -> NDArray[np.float32]:
    """Read an initializer that is a vector or a scalar."""
    assert value.const_value is not None, f"{value.name} is no initializer"
    return value.const_value.numpy()
