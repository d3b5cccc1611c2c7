"""Products of rounded activations and rows: exact integers, in both dialects of a graph.

Axes: M rows of the input, K input features, N output features.
"""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import distance, run_nodes, to_bytes
from support.oracles import MemorySource

from wiola_export.passes.ort_kernels import OrtKernels
from wiola_export.passes.standard_kernels import StandardKernels
from wiola_export.passes.surgery import Chain
from wiola_export.quantize.formats import ActivationRange, SignedRows, StaticRows
from wiola_export.quantize.policy import Decision
from wiola_export.quantize.rounding import round_rows
from wiola_export.weights import StoredWeight

KERNELS = {"ort": OrtKernels(), "standard": StandardKernels()}
every_dialect = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)


def product(kernels, weights, form, shape):
    """Return a graph that multiplies x by each weight (N, K) of a list."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="products")
    x = ir.Value(name="x", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
    graph.inputs.append(x)
    for index, weight in enumerate(weights):
        chain = Chain(graph)
        source = StoredWeight(MemorySource({"w": weight}), "w", weight.shape)
        recipe = kernels.recipe(source, Decision(form), "matrix")
        y = kernels.linear(chain, x, recipe, f"w{index}")
        y.name = f"y{index}"
        graph.extend(chain.nodes)
        graph.outputs.append(y)
    return ir.Model(graph, ir_version=10)


def multiply(kernels, weight, form, x):
    return run_nodes(product(kernels, [weight], form, x.shape), {"x": x})[0]


def oracle(weight, activations, x):
    """Round, multiply integers, scale: in float64."""
    rows, scales = round_rows(weight)
    codes = np.rint(x.astype(np.float64) / np.float32(activations.scale)) + activations.zero_point
    steps = np.clip(codes, 0, 255) - activations.zero_point
    return steps @ rows.T.astype(np.float64) * scales * activations.scale


@every_dialect
@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 5), columns=st.integers(1, 70), low=st.floats(-8, 0), high=st.floats(0, 9)
)
def test_products_are_those_of_integers(kernels, rows, columns, low, high):
    rng = np.random.default_rng(rows * 100 + columns)
    weight = rng.standard_normal((rows, columns)).astype(np.float32)
    x = rng.uniform(-10, 10, (2, 3, columns)).astype(np.float32)
    activations = ActivationRange.spanning(low, high)
    # On the edge between two codes, one division may fall to another side than the other.
    x = np.rint(x / activations.scale).astype(np.float32) * np.float32(activations.scale)

    found = multiply(kernels, weight, StaticRows(activations), x)

    expected = oracle(weight, activations, x)
    assert distance(found, expected) <= 1e-5 * (1 + np.abs(expected).max())


@every_dialect
def test_extremes_do_not_saturate(kernels):
    """All weights 127 and all activations 255: two products overflow 16 bits."""
    weight = np.ones((16, 256), np.float32) * 127
    weight[1::2] *= -1
    x = np.full((1, 4, 256), 255, np.float32)

    found = multiply(kernels, weight, StaticRows(ActivationRange(1.0, 0)), x)

    assert np.array_equal(np.abs(found), np.full((1, 4, 16), 255 * 127 * 256, np.float32))
    assert np.array_equal(np.sign(found[0, 0]), np.sign(weight[:, 0]))


def test_extremes_do_not_saturate_within_ranges_found_at_each_call():
    weight = np.ones((16, 256), np.float32) * 127
    x = np.full((1, 4, 256), 255, np.float32)

    found = multiply(KERNELS["ort"], weight, SignedRows(), x)

    assert found == pytest.approx(255 * 127 * 256, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(columns=st.integers(1, 70), sizes=st.lists(st.integers(-30, 30), min_size=1, max_size=6))
def test_each_token_is_rounded_within_its_own_range(columns, sizes):
    """However large its neighbours are, it is off by half of its own steps at most."""
    rng = np.random.default_rng(columns)
    weight = rng.standard_normal((3, columns)).astype(np.float32)
    scale = 10.0 ** np.array(sizes, np.float64)[:, None]
    x = (rng.standard_normal((1, len(sizes), columns)) * scale).astype(np.float32)

    found = multiply(KERNELS["ort"], weight, SignedRows(), x)

    codes, scales = round_rows(weight)
    stored = codes.astype(np.float64) * scales[:, None]
    steps = np.abs(x).max(-1, keepdims=True).astype(np.float64) / 127
    bound = 0.5001 * steps * np.abs(stored).sum(-1)
    assert (np.abs(found - x.astype(np.float64) @ stored.T) <= bound * 1.001).all()


def test_a_token_of_zeros_gives_zeros():
    x = np.zeros((1, 3, 40), np.float32)
    x[0, 1] = 1.0

    found = multiply(KERNELS["ort"], np.ones((4, 40), np.float32), SignedRows(), x)

    assert found[0, :, 0] == pytest.approx([0, 40, 0], rel=1e-5)


def test_both_dialects_compute_the_same():
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((24, 96)).astype(np.float32)
    x = rng.standard_normal((2, 7, 96)).astype(np.float32)
    form = StaticRows(ActivationRange.spanning(-2.5, 3.5))

    one, other = (multiply(kernels, weight, form, x) for kernels in KERNELS.values())

    assert distance(one, other) < 1e-4


def test_what_is_rounded_alike_is_rounded_once():
    """Constants have the names of their values, so that equal nodes can be told."""
    weights = [np.eye(8, dtype=np.float32)] * 3
    form = StaticRows(ActivationRange.spanning(-1, 1))

    for kernels in KERNELS.values():
        model = product(kernels, weights, form, (1, 2, 8))
        shared = [name for name in model.graph.initializers if name.startswith("activation_")]
        assert len(shared) == 2


def test_onnxruntime_makes_the_standard_form_its_own_kernel(tmp_path):
    """No product is left in floating point."""
    weight = np.random.default_rng(6).standard_normal((32, 64)).astype(np.float32)
    form = StaticRows(ActivationRange.spanning(-3, 3))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3

    model = product(KERNELS["standard"], [weight, weight], form, (1, 4, 64))
    ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])

    found = [node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph]
    assert sorted(set(found)) == ["MatMulIntegerToFloat", "QuantizeLinear"]
    assert found.count("MatMulIntegerToFloat") == 2


def test_the_own_form_is_the_kernel_already():
    form = StaticRows(ActivationRange.spanning(-3, 3))

    model = product(KERNELS["ort"], [np.eye(4, dtype=np.float32)], form, (1, 4, 4))

    assert [node.op_type for node in model.graph] == ["QuantizeLinear", "MatMulIntegerToFloat"]
