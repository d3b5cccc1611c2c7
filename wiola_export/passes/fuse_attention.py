"""Causal attention becomes ONNX Runtime's GroupQueryAttention on a shared cache."""

import onnx_ir as ir

from wiola_export.passes.row_lengths import RowLengths
from wiola_export.passes.surgery import MICROSOFT, Chain, calls, integer


class FuseAttention(ir.passes.InPlacePass):
    """Replace each attention by the kernel; past and present share one buffer of capacity C.

    Before::  y, present_key, present_value = CausalAttention(q, k, v, past_key, past_value)
    After::   y, present_key, present_value = GroupQueryAttention(
                  q, k, v, past_key, past_value, past_lengths + T − 1, max(past_lengths) + T)

    Args:
        lengths: Where the lengths of rows are found.
    """

    def __init__(self, lengths: RowLengths) -> None:
        super().__init__()
        self._lengths = lengths

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Derive the lengths once, then rewrite every call."""
        attentions = calls(model, "CausalAttention")
        if not attentions:
            return ir.passes.PassResult(model, modified=False)
        lengths = self._lengths.derive(model.graph)
        for call in attentions:
            fuse(model.graph, call, lengths)
        return ir.passes.PassResult(model, modified=True)


def fuse(graph: ir.Graph, call: ir.Node, lengths: tuple[ir.Value, ir.Value]) -> None:
    """Rewrite one call, and give its caches their capacity axis."""
    heads = {name: integer(call, name) for name in ("num_heads", "kv_num_heads")}
    chain = Chain(graph)
    outputs = chain.add_many(
        "GroupQueryAttention", [*call.inputs, *lengths], heads, domain=MICROSOFT, outputs=3
    )
    outputs[0].shape = call.outputs[0].shape
    for past, present in zip(call.inputs[3:5], call.outputs[1:], strict=True):
        assert past is not None
        assert past.shape is not None
        batch, groups, _, size = past.shape
        past.shape = ir.Shape([batch, groups, "C", size])
        present.shape = ir.Shape([batch, groups, "C", size])
    chain.replace([call], dict(zip(call.outputs, outputs, strict=True)))
