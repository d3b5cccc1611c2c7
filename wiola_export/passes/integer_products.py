"""Products of 8-bit activations and signed 8-bit rows.

Activations are unsigned: the kernels for signed ones are many times slower on x64.

Axes: N output features, K input features.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from wiola_export.passes.surgery import MICROSOFT, Chain, constant, same_type
from wiola_export.quantize.formats import SMALLEST_STEP, ActivationRange

UNIT_RANGE = ActivationRange(1 / 127, 128)  # -1 to 1


def integer_product(
    chain: Chain, x: ir.Value, weight: Sequence[ir.Value], activations: ActivationRange | None
) -> ir.Value:
    """Multiply by codes (K, N) with scales (N,), on ONNX Runtime's own kernels.

    q = QuantizeLinear(x, scale, zero_point)   y = MatMulIntegerToFloat(q, W, scale, …)

    which is what ONNX Runtime makes of `dequantized_product`. Without a range, each token's
    activations are rounded within their own, so that no token depends on its neighbours:

    m = max |x|   q = QuantizeLinear(x / m, …)   y = m · MatMulIntegerToFloat(q, W, …)
    """
    if activations is not None:
        return _product(chain, x, weight, activations)
    largest = chain.add("ReduceMax", [chain.add("Abs", [x]), chain.ints(-1)], {"keepdims": 1})
    tiny = constant(chain.graph, "smallest_activation", np.array(SMALLEST_STEP, np.float32))
    largest = chain.add("Max", [largest, tiny])
    y = _product(chain, chain.add("Div", [x, largest]), weight, UNIT_RANGE)
    return chain.add("Mul", [y, largest])


def dequantized_product(
    chain: Chain, x: ir.Value, weight: Sequence[ir.Value], activations: ActivationRange
) -> ir.Value:
    """Multiply by codes (K, N) with scales (N,), in operators of `ai.onnx`.

    q = QuantizeLinear(x, scale, zero_point)
    y = MatMul(DequantizeLinear(q, scale, zero_point), DequantizeLinear(W))
    """
    rounded, scale, zero_point = _rounded(chain, x, activations)
    seen = chain.add("DequantizeLinear", [rounded, scale, zero_point])
    columns = chain.add("DequantizeLinear", list(weight), {"axis": 1})
    for value in (seen, columns):
        same_type(value, x)
    return chain.add("MatMul", [seen, columns])


def _product(
    chain: Chain, x: ir.Value, weight: Sequence[ir.Value], activations: ActivationRange
) -> ir.Value:
    rounded, scale, zero_point = _rounded(chain, x, activations)
    codes, scales = weight
    inputs = [rounded, codes, scale, scales, zero_point]
    y = chain.add("MatMulIntegerToFloat", inputs, domain=MICROSOFT)
    same_type(y, x)
    return y


def _rounded(
    chain: Chain, x: ir.Value, activations: ActivationRange
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the codes of activations, their scale and their zero point.

    Constants are named after their values: what is rounded alike is then rounded once.
    """
    scale = constant(
        chain.graph,
        f"activation_scale.{activations.scale:.9g}",
        np.array(activations.scale, np.float32),
    )
    zero_point = constant(
        chain.graph,
        f"activation_zero_point.{activations.zero_point}",
        np.array(activations.zero_point, np.uint8),
    )
    rounded = chain.add("QuantizeLinear", [x, scale, zero_point])
    same_type(rounded, zero_point)
    return rounded, scale, zero_point
