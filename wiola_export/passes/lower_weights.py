"""Linears and the embedding lookup become kernels on weights as they are stored."""

from typing import Protocol

import onnx_ir as ir

from wiola_export.passes.surgery import Chain, calls, nodes_of, operand
from wiola_export.quantize.policy import Decision, Policy, Role
from wiola_export.quantize.recipes import Recipe, stored_bits
from wiola_export.weights import Weight, initializer_weight
from wiola_runtime.manifest import QuantizedTensor


class Kernels(Protocol):
    """How one target multiplies by, and looks up in, stored weights."""

    def recipe(self, weight: Weight, decision: Decision, role: Role) -> Recipe:
        """Choose the tensors that will stand for a weight."""
        ...

    def linear(self, chain: Chain, x: ir.Value, recipe: Recipe, name: str) -> ir.Value:
        """Add the nodes that multiply (…, K) by a stored (N, K) weight, giving (…, N)."""
        ...

    def lookup(self, chain: Chain, indices: ir.Value, recipe: Recipe, name: str) -> ir.Value:
        """Add the nodes that look up rows of a stored table."""
        ...


class LowerWeights(ir.passes.InPlacePass):
    """Replace every Linear and every lookup in a weight.

    Before::  y = Linear(x, W)            e = Gather(E, ids)
    After::   y = kernel(x, parts of W)   e = kernel(ids, parts of E)

    `stored` then lists what became of each weight, in the order of the graph.
    """

    def __init__(self, policy: Policy, kernels: Kernels) -> None:
        super().__init__()
        self._policy = policy
        self._kernels = kernels
        self.stored: list[QuantizedTensor] = []
        self._recipes: dict[str, Recipe] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Lower the lookups first: a tied head follows its embedding."""
        lookups = [n for n in nodes_of(model, "Gather") if initializer_weight(n.inputs[0])]
        linears = calls(model, "Linear")
        for node in lookups:
            self._replace(model.graph, node, weight_index=0)
        for node in linears:
            self._replace(model.graph, node, weight_index=1)
        return ir.passes.PassResult(model, modified=bool(lookups or linears))

    def _replace(self, graph: ir.Graph, node: ir.Node, *, weight_index: int) -> None:
        value, other = operand(node, weight_index), operand(node, 1 - weight_index)
        name = str(value.name)
        recipe = self._recipe(graph, node, value)
        chain = Chain(graph)
        place = self._kernels.lookup if weight_index == 0 else self._kernels.linear
        result = place(chain, other, recipe, name)
        result.shape = node.outputs[0].shape
        chain.replace([node], {node.outputs[0]: result})
        if not list(value.uses()) and graph.initializers.get(name) is value:
            del graph.initializers[name]

    def _recipe(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> Recipe:
        name, weight = str(value.name), initializer_weight(value)
        assert weight is not None, f"{name} is no weight"
        role: Role = "embedding" if node.op_type == "Gather" else "matrix"
        if role == "matrix" and reaches_logits(graph, node):
            role = "head"
        shared = name in self._recipes
        decision = self._policy.decide(role, weight.shape[1], weight.sources[0])
        if not shared:
            self._recipes[name] = self._kernels.recipe(weight, decision, role)
        self.stored.append(describe(name, self._recipes[name], decision, role, shared=shared))
        return self._recipes[name]


def reaches_logits(graph: ir.Graph, node: ir.Node) -> bool:
    """Tell whether a node's result is a graph output, perhaps after a cast."""
    output = node.outputs[0]
    readers = [use.node for use in output.uses()]
    cast = [reader.outputs[0] for reader in readers if reader.op_type == "Cast"]
    return any(value in graph.outputs for value in (output, *cast))


def describe(
    name: str, recipe: Recipe, decision: Decision, role: Role, *, shared: bool
) -> QuantizedTensor:
    """Say how a weight is stored."""
    form = decision.form
    parts = [part.size_bytes for part in recipe.parts().values()]
    return QuantizedTensor(
        name=f"{name} ({role})" if role != "matrix" else name,
        sources=recipe.weight.sources,
        shape=recipe.weight.shape,
        bits=stored_bits(recipe),
        block_size=getattr(form, "block_size", 0),
        symmetric=getattr(form, "symmetric", True),
        size_bytes=0 if shared else sum(parts),
        note="shares the bytes of the embedding" if shared else decision.note,
    )
