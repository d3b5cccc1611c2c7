"""The constant blend of two attentions folds into the weights before and after it."""

import math

import onnx_ir as ir

from wiola_export.functions import is_call
from wiola_export.passes.surgery import Chain, calls, operand, small_array
from wiola_export.weights import ScaledWeight, WeightTensor, initializer_weight

# Beyond it the factor β/(1 − β) would leave the range of float16; such a blend stays a call.
LARGEST_LOGIT = 6.0


class FoldBlend(ir.passes.InPlacePass):
    """Fold β = sigmoid(blend_logit).

    Before::  y = GatedBlend(own, ContextAttention(q, k, Linear(s, Wv)), gate, blend_logit)
              z = Linear(y, Wo)
    After::   y = Sigmoid(gate) · (own + ContextAttention(q, k, Linear(s, Wv · β/(1 − β))))
              z = Linear(y, Wo · (1 − β))
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite every call whose neighbours are such Linears."""
        folded = [fold(model.graph, call) for call in calls(model, "GatedBlend")]
        return ir.passes.PassResult(model, modified=any(folded))


def fold(graph: ir.Graph, call: ir.Node) -> bool:
    """Rewrite one call; return whether it could be done."""
    own, context, gate, logit = (operand(call, i) for i in range(4))
    values = value_projection(context)
    users = list(call.outputs[0].uses())
    if values is None or len(users) != 1 or not is_call(users[0].node, "Linear"):
        return False
    blend_logit = float(small_array(logit))
    if blend_logit > LARGEST_LOGIT:
        return False
    scale_weight(graph, values, math.exp(blend_logit))
    scale_weight(graph, users[0].node, 1 / (1 + math.exp(blend_logit)))
    chain = Chain(graph)
    mixed = chain.add("Add", [own, context])
    opened = chain.add("Sigmoid", [gate])
    chain.replace([call], {call.outputs[0]: chain.add("Mul", [opened, mixed])})
    return True


def value_projection(context: ir.Value) -> ir.Node | None:
    """Return the Linear that makes the context values, if nobody else reads either of them."""
    attention = context.producer()
    if attention is None or not is_call(attention, "ContextAttention"):
        return None
    values = operand(attention, 2).producer()
    only_ours = len(list(context.uses())) == 1 and len(list(operand(attention, 2).uses())) == 1
    return values if only_ours and values is not None and is_call(values, "Linear") else None


def scale_weight(graph: ir.Graph, linear: ir.Node, factor: float) -> None:
    """Multiply the weight of a Linear by a constant."""
    old = operand(linear, 1)
    weight = initializer_weight(old)
    assert weight is not None, f"{old.name} is no weight"
    assert len(list(old.uses())) == 1, f"{old.name} is shared and cannot be scaled"
    old.const_value = WeightTensor(ScaledWeight(weight, factor), str(old.name))
    assert graph.initializers[str(old.name)] is old
