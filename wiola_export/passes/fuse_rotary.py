"""The spiral embedding is an ordinary rotary kernel whose tables carry the radius."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from wiola_export.passes.surgery import MICROSOFT, Chain, calls, constant, integer, operand

CONSTANTS = ("theta", "divisor", "amplitude", "frequency")


class FuseRotary(ir.passes.InPlacePass):
    """Replace each rotation by the kernel.

    Before::  y = SRPE(x, positions) {head_size, theta, divisor, amplitude, frequency}
    After::   y = RotaryEmbedding(x, positions, r·cos Θ, r·sin Θ)

    Args:
        context_length: Rows of the tables, one a position.
    """

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self._context_length = context_length

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite every call; calls with the same constants share their tables."""
        rotations = calls(model, "SRPE")
        for call in rotations:
            head_size = integer(call, "head_size")
            values = tuple(call.attributes[name].as_float() for name in CONSTANTS)
            cos, sin = spiral_tables(self._context_length, head_size, values)
            key = "_".join(f"{value:g}" for value in (head_size, *values))
            tables = [
                constant(model.graph, f"srpe.{name}.{key}", table)
                for name, table in (("cos", cos), ("sin", sin))
            ]
            chain = Chain(model.graph)
            inputs = [operand(call, 0), operand(call, 1), *tables]
            rotated = chain.add("RotaryEmbedding", inputs, domain=MICROSOFT)
            rotated.shape = call.outputs[0].shape
            chain.replace([call], {call.outputs[0]: rotated})
        return ir.passes.PassResult(model, modified=bool(rotations))


def spiral_tables(
    length: int, head_size: int, values: tuple[float, ...]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return r·cos Θ and r·sin Θ, (length, head_size / 2) each, computed in float64.

    ω_j = theta^(−2j/D), Θ = p ω_j (1 + 1/divisor), r = 1 + amplitude · sin(p · frequency · ω_j).
    """
    theta, divisor, amplitude, frequency = values
    omega = theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    turned = np.arange(length, dtype=np.float64)[:, None] * omega
    angle = turned * (1 + 1 / divisor)
    radius = 1 + amplitude * np.sin(turned * frequency)
    return (radius * np.cos(angle)).astype("f4"), (radius * np.sin(angle)).astype("f4")
