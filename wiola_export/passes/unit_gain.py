"""A norm without a gain is a norm whose gain is one."""

import numpy as np
import onnx_ir as ir

from wiola_export.functions import DOMAIN
from wiola_export.passes.surgery import Chain, calls, constant, operand, static_dim


class UnitGain(ir.passes.InPlacePass):
    """Write norms without a gain as the norms that kernels know.

    Before::  y = UnitNorm(x) {epsilon}
    After::   y = RMSNorm(x, 1) {epsilon}
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite every call; those of one size share their ones."""
        norms = calls(model, "UnitNorm")
        for norm in norms:
            size = static_dim(operand(norm, 0), -1)
            ones = constant(model.graph, f"ones.{size}", np.ones(size, np.float32))
            attributes = {"epsilon": norm.attributes["epsilon"].as_float()}
            chain = Chain(model.graph)
            normed = chain.add("RMSNorm", [operand(norm, 0), ones], attributes, domain=DOMAIN)
            normed.shape = norm.outputs[0].shape
            chain.replace([norm], {norm.outputs[0]: normed})
        return ir.passes.PassResult(model, modified=bool(norms))
