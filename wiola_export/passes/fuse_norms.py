"""Residual additions and norms become one kernel each, by telescoping the norms' offsets."""

import dataclasses

import onnx_ir as ir

from wiola_export.functions import is_call
from wiola_export.passes.surgery import MICROSOFT, Chain, constant, operand, small_array

NORMS = ("WRMSNorm", "RMSNorm")
OFFSET_INPUT = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """The residual stream at one norm: the plain value x, and shifted = x + offset.

    Without an offset the two are one value.
    """

    plain: ir.Value
    shifted: ir.Value
    offset: ir.Value | None


class FuseNorms(ir.passes.InPlacePass):
    """Keep the stream shifted by the offset of the norm that reads it.

    Before::  y0 = WRMSNorm(x0, γ0, δ0)    x1 = x0 + u    y1 = WRMSNorm(x1, γ1, δ1)
    After::   r0 = x0 + δ0                 y0 = SimplifiedLayerNormalization(r0, γ0)
              y1, r1 = SkipSimplifiedLayerNormalization(r0, u, γ1, δ1 − δ0)

    r1 is x1 + δ1; whoever else reads x1 gets r1 − δ1. With RMSNorm δ is 0, and neither the
    first addition, the last input, nor the subtraction is there.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk the norms in the order of the graph."""
        norms = [n for n in model.graph if any(is_call(n, op_type) for op_type in NORMS)]
        streams: dict[ir.Value, Stream] = {}
        for norm in norms:
            stream = residual_stream(streams, operand(norm, 0))
            new = start(model.graph, norm) if stream is None else follow(model.graph, norm, stream)
            streams[new.plain] = new
        return ir.passes.PassResult(model, modified=bool(norms))


def residual_stream(streams: dict[ir.Value, Stream], x: ir.Value) -> Stream | None:
    """Return the stream of an earlier norm that x adds something to."""
    add = x.producer()
    if add is None or add.op_type != "Add" or add.domain:
        return None
    return next((streams[value] for value in add.inputs if value in streams), None)


def start(graph: ir.Graph, norm: ir.Node) -> Stream:
    """Rewrite a norm with no norm before it on its stream."""
    x, gamma, offset = operand(norm, 0), operand(norm, 1), offset_of(norm)
    chain = Chain(graph)
    shifted = x if offset is None else chain.add("Add", [x, offset])
    attributes = {"axis": -1, "epsilon": norm.attributes["epsilon"].as_float()}
    normed = chain.add("SimplifiedLayerNormalization", [shifted, gamma], attributes)
    normed.shape = norm.outputs[0].shape
    chain.replace([norm], {norm.outputs[0]: normed})
    return Stream(x, shifted, offset)


def follow(graph: ir.Graph, norm: ir.Node, stream: Stream) -> Stream:
    """Rewrite a norm together with the addition before it."""
    x, gamma, offset = operand(norm, 0), operand(norm, 1), offset_of(norm)
    add = x.producer()
    assert add is not None
    left, right = operand(add, 0), operand(add, 1)
    update = right if left is stream.plain else left
    chain = Chain(graph)
    normed, _, _, shifted = chain.add_many(
        "SkipSimplifiedLayerNormalization",
        [stream.shifted, update, gamma, *step(graph, stream.offset, offset)],
        {"epsilon": norm.attributes["epsilon"].as_float()},
        domain=MICROSOFT,
        outputs=4,
    )
    plain = shifted if offset is None else chain.add("Sub", [shifted, offset])
    # The kernel takes the addition's place, ahead of every other reader of the stream.
    normed.shape = norm.outputs[0].shape
    norm_output = norm.outputs[0]
    chain.replace([add], {x: plain})
    Chain(graph).replace([norm], {norm_output: normed})
    return Stream(plain, shifted, offset)


def offset_of(norm: ir.Node) -> ir.Value | None:
    """Return what a norm adds to its input before all else."""
    return operand(norm, OFFSET_INPUT) if is_call(norm, "WRMSNorm") else None


def step(graph: ir.Graph, old: ir.Value | None, new: ir.Value | None) -> list[ir.Value]:
    """Return new − old as the kernel's bias, nothing where neither norm has an offset."""
    if old is None:
        return [] if new is None else [new]
    name, after = ("", 0) if new is None else (str(new.name), small_array(new))
    return [constant(graph, f"{name}-{old.name}", after - small_array(old))]
