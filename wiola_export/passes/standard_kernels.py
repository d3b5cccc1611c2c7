"""Stored weights in plain `ai.onnx` operators, which any runtime has.

Blocks lie along the first axis of a matrix (K, N), as MatMul reads it: ONNX Runtime then
multiplies by the codes themselves, and keeps no floats. A weight of which anything else reads the
same initializer it would dequantize anew in every step, so lookups have their own names for it.
"""

from collections.abc import Sequence

import onnx_ir as ir

from wiola_export.errors import LoweringError
from wiola_export.passes.integer_products import dequantized_product
from wiola_export.passes.ort_kernels import ROWS, part
from wiola_export.passes.surgery import Chain, same_type
from wiola_export.quantize.formats import Blocks, Floats, StaticRows
from wiola_export.quantize.policy import Decision, Role
from wiola_export.quantize.recipes import BlockRecipe, FloatRecipe, Recipe, SignedRowRecipe
from wiola_export.weights import Weight


class StandardKernels:
    """DequantizeLinear by blocks or rows and MatMul; Gather."""

    def recipe(self, weight: Weight, decision: Decision, role: Role) -> Recipe:
        """Choose the tensors that will stand for a weight."""
        match decision.form:
            case Blocks() as form:
                return BlockRecipe(weight, form, "standard", decision.rounding)
            case StaticRows(activations):
                return SignedRowRecipe(weight, activations)
            case Floats(dtype):
                return FloatRecipe(weight, dtype)
            case other:
                raise LoweringError(
                    f"{type(other).__name__} has no form in plain ai.onnx operators for a {role}"
                )

    def linear(self, chain: Chain, x: ir.Value, recipe: Recipe, name: str) -> ir.Value:
        """Dequantize and multiply."""
        if isinstance(recipe, SignedRowRecipe):
            assert recipe.activations is not None, "the recipe is none of this target's"
            parts = [part(chain.graph, recipe, role, name) for role in recipe.parts()]
            return dequantized_product(chain, x, parts, recipe.activations)
        if isinstance(recipe, BlockRecipe):
            inputs = [part(chain.graph, recipe, role, name) for role in recipe.parts()]
            return chain.add("MatMul", [x, _dequantized(chain, inputs, recipe, x)])
        values = part(chain.graph, recipe, "values", name)
        columns = chain.add("Transpose", [values], {"perm": [1, 0]})
        return chain.add("MatMul", [x, columns])

    def lookup(self, chain: Chain, indices: ir.Value, recipe: Recipe, name: str) -> ir.Value:
        """Look up codes, scales and zero points of tokens (B, T), and dequantize what was found."""
        if isinstance(recipe, FloatRecipe):
            return chain.add("Gather", [part(chain.graph, recipe, "values", name), indices])
        assert isinstance(recipe, BlockRecipe)
        parts = [part(chain.graph, recipe, role, name, suffix=ROWS) for role in recipe.parts()]
        found = [chain.add("Gather", [values, indices], {"axis": 1}) for values in parts]
        columns = _dequantized(chain, found, recipe, parts[1])
        return chain.add("Transpose", [columns], {"perm": [1, 2, 0]})


def _dequantized(
    chain: Chain, parts: Sequence[ir.Value], recipe: BlockRecipe, floats: ir.Value
) -> ir.Value:
    """Dequantize along the first axis, to the element type of `floats`."""
    attributes = {"axis": 0, "block_size": recipe.form.block_size}
    values = chain.add("DequantizeLinear", parts, attributes)
    same_type(values, floats)
    return values
