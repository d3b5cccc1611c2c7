"""What kernels want to know of the lengths of the rows, derived in the graph."""

import dataclasses

import onnx_ir as ir

from wiola_export.passes.surgery import Chain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowLengths:
    """Names of the inputs that tell the lengths.

    Attributes:
        token_ids: The input (B, T) that tells T.
        past_lengths: The input (B) with the number of cached tokens of each row.
    """

    token_ids: str
    past_lengths: str

    def past(self, graph: ir.Graph) -> ir.Value:
        """Return the number of cached tokens of each row, int64 (B)."""
        return next(value for value in graph.inputs if value.name == self.past_lengths)

    def derive(self, graph: ir.Graph) -> tuple[ir.Value, ir.Value]:
        """Return each row's last position, int32 (B), and the longest total, an int32 scalar."""
        ids = next(value for value in graph.inputs if value.name == self.token_ids)
        chain = Chain(graph)
        count = chain.add("Shape", [ids], {"start": 1, "end": 2})
        totals = chain.add("Add", [self.past(graph), count])
        last = chain.add("Sub", [totals, chain.ints(1)])
        last32 = chain.add("Cast", [last], {"to": int(ir.DataType.INT32)})
        longest = chain.add("ReduceMax", [totals], {"keepdims": 0})
        longest32 = chain.add("Cast", [longest], {"to": int(ir.DataType.INT32)})
        last32.dtype = longest32.dtype = ir.DataType.INT32
        graph.insert_before(graph[0], chain.nodes)
        return last32, longest32
