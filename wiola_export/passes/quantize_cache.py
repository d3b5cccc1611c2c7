"""Attention keeps its keys and values in 8 bits, with a scale for each channel."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from wiola_export.errors import LoweringError
from wiola_export.passes.surgery import MICROSOFT, constant, nodes_of, operand, static_dim

# Where GroupQueryAttention takes the caches and their scales, and how it is told what they are.
CACHES, SCALES = (3, 4), (12, 13)
PRESENTS = (1, 2)
QUANT_TYPES = ("k_quant_type", "v_quant_type")


class QuantizeCache(ir.passes.InPlacePass):
    """Store keys and values as int8; inputs past and outputs present change their type with them.

    Before::  y, present_key, present_value = GroupQueryAttention(q, k, v, past_key, past_value, …)
    After::   y, present_key, present_value = GroupQueryAttention(
                  q, k, v, past_key, past_value, …, k_scale, v_scale)

    The kernel stores round(x / scale), at most 127 and at least −128, and computes with
    scale · code in floating point. A token reads its own key and value as they were stored, so
    chunks and steps give what one call gives.

    Args:
        scales: For the input name of every cache, (K, D) positive numbers: K key heads of size D.
            Keys are stored as attention gets them, after their rotation.
    """

    def __init__(self, scales: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self._scales = scales

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite every attention whose caches are floating point.

        Raises:
            LoweringError: Scales and caches do not fit, or something else reads a cache.
        """
        attentions = nodes_of(model, "GroupQueryAttention", MICROSOFT)
        self._check_names(attentions)
        floats = [node for node in attentions if operand(node, 3).dtype != ir.DataType.INT8]
        for node in floats:
            self._quantize(model.graph, node)
        return ir.passes.PassResult(model, modified=bool(floats))

    def _check_names(self, attentions: Sequence[ir.Node]) -> None:
        """Refuse caches without scales, and scales that would be without effect."""
        caches = {str(operand(node, index).name) for node in attentions for index in CACHES}
        if lacking := sorted(caches - self._scales.keys()):
            raise LoweringError(
                f"no scales for the caches {', '.join(lacking)}; measure them on the same model"
            )
        if useless := sorted(self._scales.keys() - caches):
            raise LoweringError(
                f"no attention on a shared cache reads {', '.join(useless)}, which have scales; "
                "quantize the caches of the model that the scales were measured on"
            )

    def _quantize(self, graph: ir.Graph, node: ir.Node) -> None:
        node.resize_inputs(SCALES[-1] + 1)
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
        places = zip(CACHES, SCALES, PRESENTS, QUANT_TYPES, strict=True)
        for cache, scale, present, quant_type in places:
            past = operand(node, cache)
            _check_readers(past, node.outputs[present])
            past.dtype = node.outputs[present].dtype = ir.DataType.INT8
            node.replace_input_with(scale, self._scale(graph, past))
            node.attributes[quant_type] = ir.AttrString(quant_type, "PER_CHANNEL")

    def _scale(self, graph: ir.Graph, past: ir.Value) -> ir.Value:
        """Return the scales of a cache as the kernel takes them, (1, K, 1, D)."""
        name, expected = str(past.name), (static_dim(past, 1), static_dim(past, 3))
        scales = np.asarray(self._scales[name], np.float32)
        if scales.shape != expected:
            raise LoweringError(
                f"the scales of {name} have shape {scales.shape}, expected {expected}: one for "
                "each channel of each key head"
            )
        if not (np.isfinite(scales) & (scales > 0)).all():
            raise LoweringError(
                f"the scales of {name} are not all positive and finite; a channel that is always "
                "zero may have any positive scale"
            )
        return constant(graph, f"{name}.scale", scales[None, :, None])


def _check_readers(past: ir.Value, present: ir.Value) -> None:
    """Refuse a cache that anything but its attention reads: it would take codes for numbers."""
    readers = [use.node.op_type for value in (past, present) for use in value.uses()]
    if len(readers) > 1:
        raise LoweringError(
            f"the cache {past.name} is read by {', '.join(sorted(readers))}; as int8 it can serve "
            "one attention alone; keep it in floating point"
        )
