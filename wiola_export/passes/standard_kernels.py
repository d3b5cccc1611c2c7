"""Stored weights in plain `ai.onnx` operators, which any runtime has."""

import onnx_ir as ir

from wiola_export.errors import LoweringError
from wiola_export.passes.integer_products import dequantized_product
from wiola_export.passes.ort_kernels import part
from wiola_export.passes.surgery import Chain, same_type
from wiola_export.quantize.formats import Blocks, Floats, StaticRows
from wiola_export.quantize.policy import Decision, Role
from wiola_export.quantize.recipes import BlockRecipe, FloatRecipe, Recipe, SignedRowRecipe
from wiola_export.weights import Weight


class StandardKernels:
    """DequantizeLinear by blocks or rows, Transpose and MatMul; Gather."""

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
        """Dequantize, transpose, multiply."""
        if isinstance(recipe, SignedRowRecipe):
            assert recipe.activations is not None, "the recipe is none of this target's"
            parts = [part(chain.graph, recipe, role, name) for role in recipe.parts()]
            return dequantized_product(chain, x, parts, recipe.activations)
        if isinstance(recipe, BlockRecipe):
            attributes = {"axis": 1, "block_size": recipe.form.block_size}
            inputs = [part(chain.graph, recipe, role, name) for role in recipe.parts()]
            weight = chain.add("DequantizeLinear", inputs, attributes)
            same_type(weight, x)
        else:
            weight = part(chain.graph, recipe, "values", name)
        columns = chain.add("Transpose", [weight], {"perm": [1, 0]})
        return chain.add("MatMul", [x, columns])

    def lookup(self, chain: Chain, indices: ir.Value, recipe: Recipe, name: str) -> ir.Value:
        """Look up codes, scales and zero points, and dequantize what was found."""
        roles = list(recipe.parts())
        found = [
            chain.add("Gather", [part(chain.graph, recipe, role, name), indices]) for role in roles
        ]
        if isinstance(recipe, FloatRecipe):
            return found[0]
        assert isinstance(recipe, BlockRecipe)
        attributes = {"axis": 2, "block_size": recipe.form.block_size}
        rows = chain.add("DequantizeLinear", found, attributes)
        same_type(rows, found[1])
        return rows
