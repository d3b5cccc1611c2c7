"""Stored weights on ONNX Runtime's own kernels (domain `com.microsoft`)."""

import math

import onnx_ir as ir

from wiola_export.errors import LoweringError
from wiola_export.passes.integer_products import integer_product
from wiola_export.passes.surgery import MICROSOFT, Chain, initializer, same_type
from wiola_export.quantize.formats import Blocks, Floats, SignedRows, StaticRows
from wiola_export.quantize.policy import Decision, Role
from wiola_export.quantize.recipes import (
    BlockRecipe,
    FloatRecipe,
    PartTensor,
    Recipe,
    SignedRowRecipe,
)
from wiola_export.weights import Weight

# Integer arithmetic on activations quantized block by block: the only level with fast kernels.
ACCURACY_LEVEL = 4
# Ends the name of a table that lookups read, where a product reads the same bytes.
ROWS = ".rows"


class OrtKernels:
    """MatMulNBits, integer products, FusedMatMul; GatherBlockQuantized, Gather."""

    def recipe(self, weight: Weight, decision: Decision, role: Role) -> Recipe:
        """Choose the tensors that will stand for a weight."""
        match decision.form:
            case Blocks() as form:
                return BlockRecipe(weight, form, "kernel", decision.rounding)
            case SignedRows():
                assert role == "matrix", "tables are stored in blocks or floats"
                return SignedRowRecipe(weight)
            case StaticRows(activations):
                return SignedRowRecipe(weight, activations)
            case Floats(dtype):
                return FloatRecipe(weight, dtype)

    def linear(self, chain: Chain, x: ir.Value, recipe: Recipe, name: str) -> ir.Value:
        """Multiply by a stored weight."""
        match recipe:
            case BlockRecipe():
                return self._blocks(chain, x, recipe, name)
            case SignedRowRecipe():
                parts = [part(chain.graph, recipe, role, name) for role in recipe.parts()]
                y = integer_product(chain, x, parts, recipe.activations)
            case FloatRecipe():
                values = part(chain.graph, recipe, "values", name)
                y = chain.add("FusedMatMul", [x, values], {"transB": 1}, domain=MICROSOFT)
            case _:
                raise LoweringError(f"{name}: no kernel multiplies by a {type(recipe).__name__}")
        return y

    def lookup(self, chain: Chain, indices: ir.Value, recipe: Recipe, name: str) -> ir.Value:
        """Look up rows; the bytes are those of a head that has the same recipe."""
        if isinstance(recipe, FloatRecipe):
            values = part(chain.graph, recipe, "values", name)
            rows = chain.add("Gather", [values, indices])
            same_type(rows, values)
            return rows
        assert isinstance(recipe, BlockRecipe)
        assert not recipe.weight.shape[1] % recipe.form.block_size
        parts = block_parts(chain.graph, recipe, name)
        table = flat_codes(chain.graph, recipe, name)
        rows = chain.add(
            "GatherBlockQuantized",
            [table, indices, *parts[1:]],
            {
                "bits": recipe.form.bits,
                "block_size": recipe.form.block_size,
                "gather_axis": 0,
                "quantize_axis": 1,
            },
            domain=MICROSOFT,
        )
        same_type(rows, parts[1])
        return rows

    def _blocks(self, chain: Chain, x: ir.Value, recipe: BlockRecipe, name: str) -> ir.Value:
        rows, columns = recipe.weight.shape
        return chain.add(
            "MatMulNBits",
            [x, *block_parts(chain.graph, recipe, name)],
            {
                "K": columns,
                "N": rows,
                "bits": recipe.form.bits,
                "block_size": recipe.form.block_size,
                "accuracy_level": ACCURACY_LEVEL,
            },
            domain=MICROSOFT,
        )


def part(graph: ir.Graph, recipe: Recipe, role: str, name: str, *, suffix: str = "") -> ir.Value:
    """Return the initializer of one part of a recipe, registering it where it is new."""
    full = f"{name}.{role}{suffix}"
    if full in graph.initializers:
        return graph.initializers[full]
    return initializer(graph, PartTensor(recipe, role, full), full)


def block_parts(graph: ir.Graph, recipe: BlockRecipe, name: str) -> list[ir.Value]:
    """Return codes, scales and perhaps zero points."""
    return [part(graph, recipe, role, name) for role in recipe.parts()]


def flat_codes(graph: ir.Graph, recipe: BlockRecipe, name: str) -> ir.Value:
    """Return the codes as (V, bytes of a row): the same bytes as the head's, of another shape."""
    rows, *blocks = recipe.parts()["codes"].shape
    full = f"{name}.codes{ROWS}"
    tensor = PartTensor(recipe, "codes", full, (rows, math.prod(blocks)))
    return initializer(graph, tensor, full)
