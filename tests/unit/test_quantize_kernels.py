"""What kernels make of our bytes: the product with the weights that we say they are.

Axes: M rows of the input, K input features, N output features, V table rows.
"""

import numpy as np
import onnx_ir as ir
import pytest
from support.graphs import distance, run_nodes
from support.oracles import MemorySource

from wiola_export.errors import LoweringError, QuantizationError
from wiola_export.passes.ort_kernels import OrtKernels
from wiola_export.passes.standard_kernels import StandardKernels
from wiola_export.passes.surgery import Chain
from wiola_export.quantize import recipes
from wiola_export.quantize.formats import Blocks, Floats, SignedRows
from wiola_export.quantize.packing import pad_to_blocks
from wiola_export.quantize.policy import Decision, Policy
from wiola_export.quantize.rounding import round_blocks, round_rows
from wiola_export.weights import StoredWeight

ROWS = 11
KERNELS = {"ort": OrtKernels(), "standard": StandardKernels()}
ALL_BLOCKS = [
    Blocks(bits=bits, block_size=size, symmetric=symmetric)
    for bits in (4, 8)
    for size in (16, 32, 64, 128)
    for symmetric in (False, True)
]
every_blocks = pytest.mark.parametrize("form", ALL_BLOCKS, ids=str)


def matrix(columns, rows=ROWS):
    return np.random.default_rng(columns).standard_normal((rows, columns)).astype(np.float32)


def stored(array):
    return StoredWeight(MemorySource({"w": array}), "w", array.shape)


def dequantized(array, form):
    """Return the weights that a kernel should multiply with, padding cut off."""
    made = round_blocks(pad_to_blocks(array, form.block_size), form)
    return made.dequantize().reshape(len(array), -1)[:, : array.shape[1]]


def exact_inputs(count, columns):
    """Return integers up to 127, with 127 in each block: rounding activations keeps them."""
    x = np.random.default_rng(count).integers(-126, 127, (1, count, columns))
    x[..., ::16] = 127
    return x.astype(np.float32)


def run_kernel(kernels, weight, decision, feed, *, lookup=False):
    """Lower one weight and run what comes out."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="one")
    value = ir.Value(
        name="x",
        shape=ir.Shape(feed.shape),
        type=ir.TensorType(ir.DataType.from_numpy(feed.dtype)),
    )
    graph.inputs.append(value)
    chain = Chain(graph)
    recipe = kernels.recipe(weight, decision, "embedding" if lookup else "matrix")
    y = (kernels.lookup if lookup else kernels.linear)(chain, value, recipe, "w")
    y.name = "y"
    graph.extend(chain.nodes)
    graph.outputs.append(y)
    return run_nodes(ir.Model(graph, ir_version=10), {"x": feed})[0]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("columns", [8, 40, 72, 100, 128])
@every_blocks
def test_any_number_of_features_is_multiplied_right(form, columns, name):
    """The last block is filled with zeros, or cut short: no row is mixed with another."""
    weight = matrix(columns)
    expected_weight = dequantized(weight, form)

    for count in (1, 2, 17):
        x = exact_inputs(count, columns)
        found = run_kernel(KERNELS[name], stored(weight), Decision(form), x)

        expected = x[0].astype(np.float64) @ expected_weight.T
        assert found.shape == (1, count, ROWS)
        assert distance(found[0], expected) < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("form", [f for f in ALL_BLOCKS if f.block_size < 64], ids=str)
def test_float_inputs_cost_at_most_their_own_rounding(form):
    """Accuracy level 4 rounds activations to 8 bits block by block."""
    weight, x = matrix(128), matrix(128, rows=5)[None]

    found = run_kernel(KERNELS["ort"], stored(weight), Decision(form), x)

    expected = x[0] @ dequantized(weight, form).T
    error = np.sqrt(((found[0] - expected) ** 2).mean()) / expected.std()
    assert error < 1e-2


@pytest.mark.parametrize(("name", "bits"), [("ort", 4), ("ort", 8), ("standard", 8)])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("columns", "size"), [(48, 16), (96, 32), (192, 64), (128, 128)])
def test_a_table_is_looked_up_as_it_is_multiplied_with(name, bits, symmetric, columns, size):
    """Odd numbers of 4-bit zero points included; `ai.onnx` looks up whole bytes only."""
    form = Blocks(bits=bits, block_size=size, symmetric=symmetric)
    table, ids = matrix(columns, rows=13), np.asarray([[0, 12, 5], [1, 1, 2]])

    found = run_kernel(KERNELS[name], stored(table), Decision(form), ids, lookup=True)

    assert distance(found, dequantized(table, form)[ids]) < 1e-6


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_pass_through(name, dtype):
    weight, ids = matrix(40), np.asarray([[3, 10]])
    decision = Decision(Floats(dtype))

    rows = run_kernel(KERNELS[name], stored(weight), decision, ids, lookup=True)
    product = run_kernel(KERNELS[name], stored(weight), decision, np.eye(40, dtype=dtype)[None])

    assert np.array_equal(rows, weight[ids].astype(dtype))
    assert distance(product[0], weight.T) < (1e-6 if dtype == "float32" else 2e-3)


def test_dynamic_rows_multiply_by_rounded_rows():
    weight, x = matrix(72), exact_inputs(3, 72).clip(-127, 127)
    x[0, :, 1] = -127  # 8-bit activations around a zero point of 128: steps of exactly one

    found = run_kernel(KERNELS["ort"], stored(weight), Decision(SignedRows()), x)

    codes, scales = round_rows(weight)
    expected = x[0] @ (codes * scales[:, None]).T
    assert distance(found[0], expected) < 1e-4 * np.abs(expected).max()


def test_dynamic_rows_have_no_portable_form():
    expected = r"^SignedRows has no form in plain ai.onnx operators for a matrix$"
    with pytest.raises(LoweringError, match=expected):
        KERNELS["standard"].recipe(stored(matrix(8)), Decision(SignedRows()), "matrix")


@pytest.mark.parametrize("layout", ["kernel", "standard"])
@every_blocks
def test_a_recipe_makes_what_it_announces(form, layout):
    recipe = recipes.BlockRecipe(stored(matrix(128, rows=7)), form, layout)

    made = recipe.make()

    assert made.keys() == recipe.parts().keys()
    for role, part in recipe.parts().items():
        assert made[role].nbytes == part.size_bytes, role
    stores_zero_points = layout == "standard" or not form.symmetric
    assert ("zero_points" in made) == stores_zero_points


@pytest.mark.parametrize("layout", ["kernel", "standard"])
@pytest.mark.parametrize("bits", [4, 8])
def test_chunks_of_rows_give_the_bytes_of_the_whole(monkeypatch, bits, layout):
    """Odd rows of odd blocks: half a byte may not be lost between two chunks."""
    form = Blocks(bits=bits, block_size=16)
    recipe = recipes.BlockRecipe(stored(matrix(48, rows=15)), form, layout)
    whole = recipe.make()

    monkeypatch.setattr(recipes, "CHUNK_WEIGHTS", 3 * 48)
    pieces = recipe.make()

    assert all(np.array_equal(whole[role], pieces[role]) for role in whole)


@pytest.mark.parametrize("columns", [120, 8, 100])
def test_a_table_whose_rows_are_no_whole_blocks_stays_float(columns):
    """Rows of an embedding lie side by side, without padding."""
    form = Blocks(bits=8, block_size=32)
    policy = Policy(matrices=form, tables=form, floats="float16")

    decision = policy.decide("embedding", columns, "w")

    assert decision.form == Floats("float16")
    assert decision.note == f"kept: {columns} features are no multiple of 16"


@pytest.mark.parametrize("form", [Blocks(bits=4, block_size=128), SignedRows()])
def test_a_matrix_of_short_rows_stays_float_unless_planned(form):
    """A gate of few weights: nothing is gained, and blocks would be filled up."""
    blocks = Blocks(bits=8, block_size=16)
    policy = Policy(matrices=form, tables=blocks, floats="float32", planned={"w": blocks})

    short = policy.decide("matrix", 32, "gate")

    note = "kept: rows of 32 features are too short to pay"
    assert short == Decision(Floats("float32"), note)
    assert policy.decide("matrix", 32, "w").form == blocks
    assert policy.decide("matrix", 33, "gate").form == form


@pytest.mark.parametrize(("columns", "size"), [(192, 64), (96, 32), (48, 16), (256, 128)])
def test_a_table_takes_the_largest_block_that_divides_its_rows(columns, size):
    form = Blocks(bits=8, block_size=128)
    policy = Policy(matrices=form, tables=form, floats="float32")

    assert policy.decide("head", columns, "w").form == Blocks(bits=8, block_size=size)
    assert policy.decide("embedding", columns, "w").form == Blocks(bits=8, block_size=size)


@pytest.mark.parametrize(
    ("form", "value", "largest"),
    [
        (Floats("float16"), 7e4, "6.55e+04"),
        (Blocks(bits=8, block_size=16, scales="float16"), -7e4, "6.55e+04"),
        (Blocks(bits=4, block_size=16), 1e20, "1e+15"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", KERNELS)
def test_a_weight_that_does_not_fit_is_refused(name, form, value, largest):
    """An infinity in the file would be found far from here."""
    weight = stored(np.full((2, 16), value, np.float32))
    recipe = KERNELS[name].recipe(weight, Decision(form), "matrix")

    with pytest.raises(QuantizationError) as caught:
        recipe.make()

    assert str(caught.value) == (
        f"w holds a weight of {abs(value):.3g}, expected at most {largest} in this precision "
        f"and target; check the checkpoint, or keep float32 with --fp32"
    )
