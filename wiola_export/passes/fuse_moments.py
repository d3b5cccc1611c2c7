"""Attention to mean and variance becomes one GroupQueryAttention on values beside their squares."""

import math

import numpy as np
import onnx_ir as ir

from wiola_export.passes.row_lengths import RowLengths
from wiola_export.passes.surgery import (
    MICROSOFT,
    Chain,
    calls,
    constant,
    integer,
    operand,
    same_type,
    static_dim,
)

CACHES = (3, 4)
Lengths = tuple[ir.Value, ir.Value]


class FuseMoments(ir.passes.InPlacePass):
    """Mix values and their squares about the row's first value c with the same weights.

    Before::  mean, variance, … = MomentAttention(q, k, v, past_key, past_value)
    After::   c = v or past_value at the first position
              m, s = Split(GroupQueryAttention(
                  [q, 0], [k, 0], [v, (v − c)²], past_key, past_value, …) {scale 1 / √D})
              mean = m    variance = Max(s − (m − c)², 0)

    The kernel wants keys as wide as values, so zeros fill up half of them, and both caches become
    twice as wide. Where all weight is on the first position, the square is that of zero.

    Args:
        lengths: Where the lengths of rows are found.
    """

    def __init__(self, lengths: RowLengths) -> None:
        super().__init__()
        self._lengths = lengths

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Derive the lengths once, then rewrite every call."""
        attentions = calls(model, "MomentAttention")
        if not attentions:
            return ir.passes.PassResult(model, modified=False)
        lengths = self._lengths.derive(model.graph)
        fresh = self._is_fresh(model.graph)
        for call in attentions:
            _Fusing(model.graph, call).run(lengths, fresh)
        return ir.passes.PassResult(model, modified=True)

    def _is_fresh(self, graph: ir.Graph) -> ir.Value:
        """Tell the rows that have nothing cached, (B, 1, 1, 1)."""
        chain = Chain(graph)
        nothing = chain.add("Equal", [self._lengths.past(graph), chain.ints(0)])
        nothing.dtype = ir.DataType.BOOL
        fresh = chain.add("Reshape", [nothing, chain.ints(-1, 1, 1, 1)])
        graph.insert_before(graph[0], chain.nodes)
        return fresh


class _Fusing:
    """One call on its way.

    Axes: B rows, T new positions, H heads, D head size, C cache capacity.
    """

    def __init__(self, graph: ir.Graph, call: ir.Node) -> None:
        self._call = call
        self._caches = [operand(call, index) for index in CACHES]
        self._heads, self._size = integer(call, "num_heads"), static_dim(self._caches[1], 3)
        self._chain = Chain(graph)

    def run(self, lengths: Lengths, fresh: ir.Value) -> None:
        chain = self._chain
        q, k, v = (self._per_head(operand(self._call, index), self._size) for index in range(3))
        origin = self._origin(v, fresh)
        from_origin = chain.add("Sub", [v, origin])
        squares = chain.add("Mul", [from_origin, from_origin])
        values = chain.add("Concat", [v, squares], {"axis": -1})
        mixed, *caches = self._attend([self._padded(q), self._padded(k), values], lengths)
        sizes = chain.ints(self._size, self._size)
        halves = [self._per_head(mixed, 2 * self._size), sizes]
        mean, second = chain.add_many("Split", halves, {"axis": -1}, outputs=2)
        first = chain.add("Sub", [mean, origin])
        spread = chain.add("Sub", [second, chain.add("Mul", [first, first])])
        nothing = constant(chain.graph, "nothing", np.array(0, np.float32))
        results = [self._flat(mean), self._flat(chain.add("Max", [spread, nothing])), *caches]
        for old, new in zip(self._call.outputs[:2], results[:2], strict=True):
            new.shape = old.shape
        self._widen_caches()
        chain.replace([self._call], dict(zip(self._call.outputs, results, strict=True)))

    def _origin(self, v: ir.Value, fresh: ir.Value) -> ir.Value:
        """Return the values (B, 1, H, D) at the first position of each row."""
        chain, ints = self._chain, self._chain.ints
        now = chain.add("Slice", [v, ints(0), ints(1), ints(1)])
        corner = [self._caches[1], ints(0, 0), ints(1, self._size), ints(2, 3)]
        cached = chain.add("Transpose", [chain.add("Slice", corner)], {"perm": [0, 2, 1, 3]})
        origin = chain.add("Where", [fresh, now, cached])
        same_type(origin, v)
        return origin

    def _attend(self, wide: list[ir.Value], lengths: Lengths) -> tuple[ir.Value, ...]:
        """Call the kernel on queries, keys and values (B, T, H, 2D)."""
        flat = [self._flat(x) for x in wide]
        heads = {"num_heads": self._heads, "kv_num_heads": self._heads}
        attributes = {**heads, "scale": 1 / math.sqrt(self._size)}
        inputs = [*flat, *self._caches, *lengths]
        outputs = self._chain.add_many(
            "GroupQueryAttention", inputs, attributes, domain=MICROSOFT, outputs=3
        )
        return tuple(outputs)

    def _widen_caches(self) -> None:
        for past, present in zip(self._caches, self._call.outputs[2:], strict=True):
            assert past.shape is not None
            past.shape = ir.Shape([past.shape[0], self._heads, "C", 2 * self._size])
            present.shape = past.shape

    def _per_head(self, x: ir.Value, size: int) -> ir.Value:
        return self._chain.add("Reshape", [x, self._chain.ints(0, 0, self._heads, size)])

    def _padded(self, x: ir.Value) -> ir.Value:
        """Put D zeros behind the last axis."""
        return self._chain.add("Pad", [x, self._chain.ints(0, 0, 0, 0, 0, 0, 0, self._size)])

    def _flat(self, x: ir.Value) -> ir.Value:
        return self._chain.add("Reshape", [x, self._chain.ints(0, 0, -1)])
