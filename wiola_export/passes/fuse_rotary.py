"""Every rotation by position is an ordinary rotary kernel, whose tables tell them apart."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from wiola_export.passes.surgery import MICROSOFT, Chain, calls, constant, integer, operand

Tables = tuple[NDArray[np.float32], NDArray[np.float32]]


class FuseRotary(ir.passes.InPlacePass):
    """Replace each rotation by the kernel.

    Before::  y = SRPE(x, positions) {head_size, theta, divisor, amplitude, frequency}
              z = SpiralRotary(x, positions) {head_size, theta, alpha}
    After::   y = RotaryEmbedding(x, positions, r·cos Θ, r·sin Θ)
              z = RotaryEmbedding(x, positions, cos Θ, sin Θ)

    Args:
        context_length: Rows of the tables, one a position.
    """

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self._context_length = context_length

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite every call; calls with the same constants share their tables."""
        rotations = [call for op_type in ROTATIONS for call in calls(model, op_type)]
        for call in rotations:
            chain = Chain(model.graph)
            inputs = [operand(call, 0), operand(call, 1), *self._tables(model.graph, call)]
            rotated = chain.add("RotaryEmbedding", inputs, domain=MICROSOFT)
            rotated.shape = call.outputs[0].shape
            chain.replace([call], {call.outputs[0]: rotated})
        return ir.passes.PassResult(model, modified=bool(rotations))

    def _tables(self, graph: ir.Graph, call: ir.Node) -> list[ir.Value]:
        names, make = ROTATIONS[call.op_type]
        head_size = integer(call, "head_size")
        values = tuple(call.attributes[name].as_float() for name in names)
        key = "_".join(f"{value:g}" for value in (head_size, *values))
        tables = zip(("cos", "sin"), make(self._context_length, head_size, values), strict=True)
        prefix = call.op_type.lower()
        return [constant(graph, f"{prefix}.{name}.{key}", table) for name, table in tables]


def srpe_tables(length: int, head_size: int, values: tuple[float, ...]) -> Tables:
    """Return r·cos Θ and r·sin Θ, (length, head_size / 2) each, computed in float64.

    ω_j = theta^(−2j/D), Θ = p ω_j (1 + 1/divisor), r = 1 + amplitude · sin(p · frequency · ω_j).
    """
    theta, divisor, amplitude, frequency = values
    omega = theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    turned = np.arange(length, dtype=np.float64)[:, None] * omega
    angle = turned * (1 + 1 / divisor)
    radius = 1 + amplitude * np.sin(turned * frequency)
    return (radius * np.cos(angle)).astype("f4"), (radius * np.sin(angle)).astype("f4")


def spiral_tables(length: int, head_size: int, values: tuple[float, ...]) -> Tables:
    """Return cos Θ and sin Θ, (length, head_size / 2) each, computed in float64.

    Θ = p · theta^(−2i/D) · (1 + alpha · sqrt(i + 1) / sqrt(D/2)).
    """
    theta, alpha = values
    index = np.arange(head_size // 2, dtype=np.float64)
    spread = 1 + alpha * np.sqrt((index + 1) / (head_size / 2))
    omega = theta ** (-2 * index / head_size) * spread
    angle = np.arange(length, dtype=np.float64)[:, None] * omega
    return np.cos(angle).astype("f4"), np.sin(angle).astype("f4")


ROTATIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Tables]]] = {
    "SRPE": (("theta", "divisor", "amplitude", "frequency"), srpe_tables),
    "SpiralRotary": (("theta", "alpha"), spiral_tables),
}
