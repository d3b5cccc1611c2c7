"""Attention to one or two layer summaries needs no softmax."""

import math
from collections.abc import Callable

import onnx_ir as ir

from wiola_export.functions import is_call
from wiola_export.passes.surgery import (
    MICROSOFT,
    Chain,
    calls,
    integer,
    operand,
    same_type,
    static_dim,
)
from wiola_export.weights import Weight, initializer_weight

PAIR = 2
DEPTH_AXIS = 2  # of (B, T, n, features)


class FuseContext(ir.passes.InPlacePass):
    """Write the softmax over one or two summaries as what it is.

    Before::  y = ContextAttention(q, k, v)          k, v (B, T, n, K·D)
    After::   n = 1:  y = v, repeated for the heads of its group
              n = 2:  y = v1 + Sigmoid(q · (k0 − k1) / sqrt(D)) · (v0 − v1)

    Where one Linear makes keys and values of the stacked summaries [s0; s1], it is given
    [s0 − s1; s1] instead, and its results are the very terms. More summaries keep the general
    function.

    Args:
        may_differ: Says of a weight whether its product may read such differences.
    """

    def __init__(self, may_differ: Callable[[Weight], bool]) -> None:
        super().__init__()
        self._may_differ = may_differ

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the calls that have one or two summaries."""
        few = [c for c in calls(model, "ContextAttention") if summaries(c) <= PAIR]
        for call in few:
            chain = Chain(model.graph)
            product = self._common_product(call)
            if summaries(call) == 1:
                result = one_summary(chain, call)
            elif product:
                result = blend(chain, call, *projected_differences(chain, call, product[0]))
            else:
                result = blend(chain, call, *differences(chain, call))
            flat = chain.add("Reshape", [result, chain.ints(0, 0, -1)])
            flat.shape = call.outputs[0].shape
            chain.replace([*product, call], {call.outputs[0]: flat})
        return ir.passes.PassResult(model, modified=bool(few))

    def _common_product(self, call: ir.Node) -> list[ir.Node]:
        """Return Linear and Split, if these make keys and values of two stacked summaries."""
        cut = operand(call, 1).producer()
        if cut is None or list(cut.outputs) != [operand(call, 1), operand(call, 2)]:
            return []
        product = operand(cut, 0).producer()
        if cut.op_type != "Split" or product is None or not is_call(product, "Linear"):
            return []
        stack = operand(product, 0).producer()
        weight = initializer_weight(operand(product, 1))
        if stack is None or stack.op_type != "Concat" or len(stack.inputs) != PAIR:
            return []
        read_once = all(len(list(value.uses())) == 1 for value in (*cut.outputs, operand(cut, 0)))
        differs = weight is not None and self._may_differ(weight)
        return [product, cut] if read_once and differs else []


def summaries(call: ir.Node) -> int:
    """Return n."""
    return static_dim(operand(call, 1), DEPTH_AXIS)


def one_summary(chain: Chain, call: ir.Node) -> ir.Value:
    """Repeat the values of each group for its heads: (B, T, K, H/K, D)."""
    groups = integer(call, "kv_num_heads")
    values = chain.add("Reshape", [operand(call, 2), chain.ints(0, 0, groups, 1, -1)])
    per_group = integer(call, "num_heads") // groups
    return chain.add("Expand", [values, chain.ints(1, 1, 1, per_group, 1)])


def blend(chain: Chain, call: ir.Node, key: ir.Value, value: ir.Value, later: ir.Value) -> ir.Value:
    """Weigh two values by a sigmoid: (B, T, 1, K, H/K, D).

    Args:
        chain: Where the nodes go.
        call: The attention.
        key: k0 − k1, (B, T, 1, K, 1, D).
        value: v0 − v1.
        later: v1.
    """
    groups, heads = integer(call, "kv_num_heads"), integer(call, "num_heads")
    size = head_size(call)
    per_group = chain.ints(0, 0, 1, groups, heads // groups, size)
    queries = chain.add("Reshape", [operand(call, 0), per_group])
    attributes = {"transB": 1, "alpha": 1 / math.sqrt(size)}
    scores = chain.add("FusedMatMul", [queries, key], attributes, domain=MICROSOFT)
    weighted = chain.add("Mul", [chain.add("Sigmoid", [scores]), value])
    return chain.add("Add", [weighted, later])


def differences(chain: Chain, call: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Subtract keys and values: k0 − k1, v0 − v1, v1, each (B, T, 1, K, 1, D)."""
    pairs = []
    for stacked in (operand(call, 1), operand(call, 2)):
        by_head = chain.ints(0, 0, PAIR, integer(call, "kv_num_heads"), 1, head_size(call))
        pairs.append(split(chain, chain.add("Reshape", [stacked, by_head]), PAIR))
    (key0, key1), (value0, value1) = pairs
    return chain.add("Sub", [key0, key1]), chain.add("Sub", [value0, value1]), value1


def projected_differences(
    chain: Chain, call: ir.Node, product: ir.Node
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Project the difference of the summaries: k0 − k1, v0 − v1, v1, each (B, T, 1, K, 1, D)."""
    stacked = operand(product, 0)
    stack = stacked.producer()
    assert stack is not None
    earlier, later = stack.inputs
    terms = chain.add("Concat", [chain.add("Sub", [earlier, later]), later], {"axis": DEPTH_AXIS})
    terms.shape = stacked.shape
    same_type(terms, stacked)
    projected = chain.add("Linear", [terms, operand(product, 1)], domain=product.domain)
    projected.shape = product.outputs[0].shape
    same_type(projected, product.outputs[0])
    by_head = chain.ints(0, 0, 2 * PAIR, integer(call, "kv_num_heads"), 1, head_size(call))
    key, value, _, later_value = split(chain, chain.add("Reshape", [projected, by_head]), 2 * PAIR)
    return key, value, later_value


def head_size(call: ir.Node) -> int:
    """Return D."""
    return static_dim(operand(call, 0), -1) // integer(call, "num_heads")


def split(chain: Chain, stacked: ir.Value, parts: int) -> tuple[ir.Value, ...]:
    """Cut (B, T, n, …) in n of (B, T, 1, …)."""
    attributes = {"axis": DEPTH_AXIS, "num_outputs": parts}
    return tuple(chain.add_many("Split", [stacked], attributes, outputs=parts))
