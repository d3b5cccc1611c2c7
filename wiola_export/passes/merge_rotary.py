"""Queries and keys that lie side by side are rotated by one call."""

import onnx_ir as ir

from wiola_export.passes.surgery import MICROSOFT, Chain, nodes_of, operand, small_array


class MergeRotary(ir.passes.InPlacePass):
    """Rotate neighbours of one Split together.

    Before::  q, k, v = Split(x)      q' = RotaryEmbedding(q)   k' = RotaryEmbedding(k)
    After::   qk, v = Split(x)        q', k' = Split(RotaryEmbedding(qk))
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Merge the first two outputs of every Split that are both rotated, and only that."""
        merged = [merge(model.graph, split) for split in nodes_of(model, "Split")]
        return ir.passes.PassResult(model, modified=any(merged))


def merge(graph: ir.Graph, split: ir.Node) -> bool:
    """Rewrite one Split; return whether it could be done."""
    rotations = [only_rotation(value) for value in split.outputs[:2]]
    q, k = (*rotations, None, None)[:2]
    if q is None or k is None or q.inputs[1:] != k.inputs[1:]:
        return False
    sizes = small_array(operand(split, 1)).astype(int).tolist()
    chain = Chain(graph)
    wide = [sizes[0] + sizes[1], *sizes[2:]]
    inputs = [operand(split, 0), chain.ints(*wide)]
    both, *rest = chain.add_many("Split", inputs, {"axis": -1}, outputs=len(wide))
    rotated = chain.add("RotaryEmbedding", [both, *q.inputs[1:]], domain=MICROSOFT)
    parts = chain.add_many("Split", [rotated, chain.ints(*sizes[:2])], {"axis": -1}, outputs=2)
    # The rotations read the old Split, so they go first.
    graph.insert_after(split, chain.nodes)
    chain.nodes = []
    Chain(graph).replace([q], {q.outputs[0]: parts[0]})
    Chain(graph).replace([k], {k.outputs[0]: parts[1]})
    Chain(graph).replace([split], dict(zip(split.outputs[2:], rest, strict=True)))
    return True


def only_rotation(value: ir.Value) -> ir.Node | None:
    """Return the RotaryEmbedding that is the only reader of a value."""
    readers = [use.node for use in value.uses()]
    alone = len(readers) == 1 and readers[0].op_type == "RotaryEmbedding"
    return readers[0] if alone and readers[0].domain == MICROSOFT else None
