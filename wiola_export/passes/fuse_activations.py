"""Activations that ONNX Runtime has a kernel for."""

import onnx_ir as ir

from wiola_export.passes.surgery import MICROSOFT, Chain, calls, operand


class FuseActivations(ir.passes.InPlacePass):
    """Replace SiLU by the kernel that computes x · sigmoid(α x).

    Before::  y = SiLU(x)
    After::   y = QuickGelu(x) {alpha = 1}
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite every call."""
        silus = calls(model, "SiLU")
        for call in silus:
            chain = Chain(model.graph)
            y = chain.add("QuickGelu", [operand(call, 0)], {"alpha": 1.0}, domain=MICROSOFT)
            y.shape = call.outputs[0].shape
            chain.replace([call], {call.outputs[0]: y})
        return ir.passes.PassResult(model, modified=bool(silus))
