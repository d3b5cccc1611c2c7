"""Linears that read the same input become one, whose output is split."""

from collections.abc import Callable, Hashable

import onnx_ir as ir

from wiola_export.functions import DOMAIN
from wiola_export.passes.surgery import Chain, calls, initializer, operand
from wiola_export.weights import StackedWeight, Weight, WeightTensor, initializer_weight


class PackLinears(ir.passes.InPlacePass):
    """Make one matrix product of each distinct input, as far as weights are stored alike.

    Before::  q = Linear(x, Wq)   k = Linear(x, Wk)   v = Linear(x, Wv)
    After::   q, k, v = Split(Linear(x, [Wq; Wk; Wv]))

    Args:
        storage: Says how a weight will be stored; only equal answers are packed.
    """

    def __init__(self, storage: Callable[[Weight], Hashable]) -> None:
        super().__init__()
        self._storage = storage

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Group the calls by their input and storage."""
        groups: dict[tuple[ir.Value, Hashable], list[ir.Node]] = {}
        for call in calls(model, "Linear"):
            key = operand(call, 0), self._storage(weight_of(call))
            groups.setdefault(key, []).append(call)
        several = [group for group in groups.values() if len(group) > 1]
        for group in several:
            pack(model.graph, group)
        return ir.passes.PassResult(model, modified=bool(several))


def pack(graph: ir.Graph, group: list[ir.Node]) -> None:
    """Replace the calls of one group, where the first of them stands."""
    weights = [weight_of(call) for call in group]
    name = packed_name([str(operand(call, 1).name) for call in group])
    stacked = WeightTensor(StackedWeight(tuple(weights)), name)
    chain = Chain(graph)
    packed = chain.add(
        "Linear", [operand(group[0], 0), initializer(graph, stacked, name)], domain=DOMAIN
    )
    packed.shape = packed_shape(group[0], stacked.weight.shape[0])
    sizes = chain.ints(*(weight.shape[0] for weight in weights))
    parts = chain.add_many("Split", [packed, sizes], {"axis": -1}, outputs=len(group))
    old_weights = [operand(call, 1) for call in group]
    # The results are wanted from the first call on, so the chain stands before all of them.
    first, *others = group
    chain.replace([first], {first.outputs[0]: parts[0]})
    for call, part in zip(others, parts[1:], strict=True):
        Chain(graph).replace([call], {call.outputs[0]: part})
    for old in old_weights:
        if not list(old.uses()):
            del graph.initializers[str(old.name)]


def weight_of(call: ir.Node) -> Weight:
    """Return the weight of a Linear."""
    weight = initializer_weight(operand(call, 1))
    assert weight is not None, f"{operand(call, 1).name} is no weight"
    return weight


def packed_name(names: list[str]) -> str:
    """Join `a.q.weight` and `a.k.weight` to `a.q+k.weight`."""
    prefixes, middles = zip(
        *(name.removesuffix(".weight").rpartition(".")[::2] for name in names), strict=True
    )
    return f"{prefixes[0]}.{'+'.join(middles)}.weight"


def packed_shape(call: ir.Node, features: int) -> ir.Shape:
    """Return the shape of a Linear's output, with another number of features."""
    shape = call.outputs[0].shape
    assert shape is not None
    return ir.Shape([*list(shape)[:-1], features])
