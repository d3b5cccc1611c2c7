"""Residual additions and shifted norms become one kernel each, by telescoping the offsets."""

import dataclasses

import onnx_ir as ir

from wiola_export.passes.surgery import (
    MICROSOFT,
    Chain,
    calls,
    constant,
    operand,
    small_array,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """The residual stream at one norm: the plain value x, and shifted = x + offset."""

    plain: ir.Value
    shifted: ir.Value
    offset: ir.Value


class FuseNorms(ir.passes.InPlacePass):
    """Keep the stream shifted by the offset of the norm that reads it.

    Before::  y0 = WRMSNorm(x0, γ0, δ0)    x1 = x0 + u    y1 = WRMSNorm(x1, γ1, δ1)
    After::   r0 = x0 + δ0                 y0 = SimplifiedLayerNormalization(r0, γ0)
              y1, r1 = SkipSimplifiedLayerNormalization(r0, u, γ1, δ1 − δ0)

    r1 is x1 + δ1; whoever else reads x1 gets r1 − δ1.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk the norms in the order of the stream."""
        stream: Stream | None = None
        norms = calls(model, "WRMSNorm")
        for norm in norms:
            update = None if stream is None else residual_update(stream, operand(norm, 0))
            if stream is None or update is None:
                stream = start(model.graph, norm)
            else:
                stream = follow(model.graph, norm, stream, update)
        return ir.passes.PassResult(model, modified=bool(norms))


def residual_update(stream: Stream, x: ir.Value) -> ir.Value | None:
    """Return u where x is stream + u."""
    add = x.producer()
    if add is None or add.op_type != "Add" or add.domain or stream.plain not in add.inputs:
        return None
    left, right = operand(add, 0), operand(add, 1)
    return right if left is stream.plain else left


def start(graph: ir.Graph, norm: ir.Node) -> Stream:
    """Rewrite a norm with no norm before it on its stream."""
    x, gamma, offset = (operand(norm, i) for i in range(3))
    chain = Chain(graph)
    shifted = chain.add("Add", [x, offset])
    attributes = {"axis": -1, "epsilon": norm.attributes["epsilon"].as_float()}
    normed = chain.add("SimplifiedLayerNormalization", [shifted, gamma], attributes)
    chain.replace([norm], {norm.outputs[0]: normed})
    return Stream(x, shifted, offset)


def follow(graph: ir.Graph, norm: ir.Node, stream: Stream, update: ir.Value) -> Stream:
    """Rewrite a norm together with the addition before it."""
    x, gamma, offset = (operand(norm, i) for i in range(3))
    add = x.producer()
    assert add is not None
    step = small_array(offset) - small_array(stream.offset)
    bias = constant(graph, f"{offset.name}.step", step)
    chain = Chain(graph)
    normed, _, _, shifted = chain.add_many(
        "SkipSimplifiedLayerNormalization",
        [stream.shifted, update, gamma, bias],
        {"epsilon": norm.attributes["epsilon"].as_float()},
        domain=MICROSOFT,
        outputs=4,
    )
    plain = chain.add("Sub", [shifted, offset])
    # The kernel takes the addition's place, ahead of every other reader of the stream.
    normed.shape = norm.outputs[0].shape
    norm_output = norm.outputs[0]
    chain.replace([add], {x: plain})
    Chain(graph).replace([norm], {norm_output: normed})
    return Stream(plain, shifted, offset)
