"""Attention to one or two layer summaries needs no softmax."""

import math

import numpy as np
import onnx_ir as ir

from wiola_export.passes.surgery import Chain, calls, constant, integer, operand, static_dim

PAIR = 2


class FuseContext(ir.passes.InPlacePass):
    """Write the softmax over one or two summaries as what it is.

    Before::  y = ContextAttention(q, k, v)          k, v (B, T, n, K·D)
    After::   n = 1:  y = v, repeated for the heads of its group
              n = 2:  y = v1 + Sigmoid(q · (k0 − k1) / sqrt(D)) · (v0 − v1)

    More summaries keep the general function.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the calls that have one or two summaries."""
        few = [c for c in calls(model, "ContextAttention") if summaries(c) <= PAIR]
        for call in few:
            chain = Chain(model.graph)
            result = one_summary(chain, call) if summaries(call) == 1 else two(chain, call)
            flat = chain.add("Reshape", [result, chain.ints(0, 0, -1)])
            flat.shape = call.outputs[0].shape
            chain.replace([call], {call.outputs[0]: flat})
        return ir.passes.PassResult(model, modified=bool(few))


def summaries(call: ir.Node) -> int:
    """Return n."""
    return static_dim(operand(call, 1), 2)


def one_summary(chain: Chain, call: ir.Node) -> ir.Value:
    """Repeat the values of each group for its heads: (B, T, K, H/K, D)."""
    groups = integer(call, "kv_num_heads")
    values = chain.add("Reshape", [operand(call, 2), chain.ints(0, 0, groups, 1, -1)])
    per_group = integer(call, "num_heads") // groups
    return chain.add("Expand", [values, chain.ints(1, 1, 1, per_group, 1)])


def two(chain: Chain, call: ir.Node) -> ir.Value:
    """Weigh two values by a sigmoid: (B, T, K, H/K, D)."""
    groups, heads = integer(call, "kv_num_heads"), integer(call, "num_heads")
    head_size = static_dim(operand(call, 0), -1) // heads
    grouped = chain.ints(0, 0, groups, 1, head_size)
    queries = chain.add(
        "Reshape", [operand(call, 0), chain.ints(0, 0, groups, heads // groups, head_size)]
    )
    key0, key1 = split_pair(chain, operand(call, 1))
    value0, value1 = split_pair(chain, operand(call, 2))
    keys = chain.add("Reshape", [chain.add("Sub", [key0, key1]), grouped])
    values = chain.add("Reshape", [chain.add("Sub", [value0, value1]), grouped])
    products = chain.add("Mul", [queries, keys])
    sums = chain.add("ReduceSum", [products, chain.ints(-1)], {"keepdims": 1})
    scale = np.array(1 / math.sqrt(head_size), np.float32)
    scores = chain.add("Mul", [sums, constant(chain.graph, f"scale.{head_size}", scale)])
    weighted = chain.add("Mul", [chain.add("Sigmoid", [scores]), values])
    return chain.add("Add", [weighted, chain.add("Reshape", [value1, grouped])])


def split_pair(chain: Chain, stacked: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Split (B, T, 2, n) in two of (B, T, 1, n)."""
    first, second = chain.add_many("Split", [stacked], {"axis": 2, "num_outputs": 2}, outputs=2)
    return first, second
