"""What is read back from a graph is what its kernels multiply with.

Axes: N output features, K input features, b blocks of a row.
"""

import re

import numpy as np
import onnx_ir as ir
import pytest
from support import float_graphs, oracles
from support.graphs import run_nodes
from support.manifests import matrix
from support.oracles import MemorySource

from wiola_export.errors import EvaluationError
from wiola_export.evaluate import rounding_error
from wiola_export.evaluate.rounding_error import measure_errors, relative_error
from wiola_export.evaluate.stored_weights import StoredMatrix, open_matrices
from wiola_export.options import Quantization
from wiola_export.weights import StoredWeight
from wiola_runtime.manifest import Manifest

RNG = np.random.default_rng(9)


def spec(rows, columns, *, bits, block_size):
    return matrix("w", (rows, columns), bits=bits, block_size=block_size)


def model_of(text, tensors):
    """Parse a graph and give it initializers."""
    model = ir.from_onnx_text(text, initializers=list(tensors.values()))
    del model.graph.inputs[1:]  # the text format declares weights as inputs
    return model


def product_with_identity(model, columns):
    """Multiply the rows of the identity: the kernel's own weights, (N, K)."""
    identity = np.eye(columns, dtype=np.float32)
    return run_nodes(model, {"x": identity})[0].T


def check(tmp_path, model, which, *, atol=1e-6):
    """Compare reading back, in pieces, with what the kernel does."""
    expected = product_with_identity(model, which.shape[1])
    ir.save(model, tmp_path / "m.onnx", external_data="m.onnx.data")
    stored = open_matrices(tmp_path / "m.onnx", (which,))["w"]
    rows = which.shape[0]

    found = [stored.rows(start, min(start + 2, rows)) for start in range(0, rows, 2)]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=atol)
    np.testing.assert_array_equal(stored.rows(0, rows), np.concatenate(found))


@pytest.mark.parametrize("zero_points", [True, False])
@pytest.mark.parametrize(("bits", "size", "columns"), [(4, 16, 40), (4, 32, 96), (8, 32, 72)])
def test_blocks_of_the_kernels(tmp_path, bits, size, columns, zero_points):
    """Odd rows, a last block that is not full, an odd number of 4-bit zero points."""
    rows, blocks = 7, -(-columns // size)
    packed = -(-blocks * bits // 8)
    tensors = {
        "w.codes": RNG.integers(0, 256, (rows, blocks, size * bits // 8), np.uint8),
        "w.scales": RNG.random((rows, blocks), np.float32),
        "w.zero_points": RNG.integers(0, 256, (rows, packed), np.uint8),
    }
    if not zero_points:
        del tensors["w.zero_points"]
    values = {name: ir.tensor(array, name=name) for name, array in tensors.items()}
    shapes = {"w.codes": f"{rows}, {blocks}, {size * bits // 8}", "w.scales": f"{rows}, {blocks}",
              "w.zero_points": f"{rows}, {packed}"}  # fmt: skip
    types = {"w.scales": "float"}
    declared = ", ".join(f'{types.get(n, "uint8")}[{shapes[n]}] "{n}"' for n in tensors)
    inputs = ", ".join(f'"{name}"' for name in tensors)
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[M, {columns}] x, {declared}) => (float[M, {rows}] y) {{
      y = com.microsoft.MatMulNBits <K = {columns}, N = {rows}, bits = {bits},
                                     block_size = {size}> (x, {inputs})
    }}"""

    model = model_of(text, values)

    check(tmp_path, model, spec(rows, columns, bits=bits, block_size=size), atol=1e-5)


@pytest.mark.parametrize(("bits", "size", "columns"), [(4, 16, 33), (8, 32, 72), (8, 16, 7)])
def test_blocks_of_the_standard(tmp_path, bits, size, columns):
    """Rows of an odd number of 4-bit codes begin inside a byte."""
    rows, blocks = 5, -(-columns // size)
    dtype = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}[bits]
    codes = RNG.integers(0, 2**bits, (columns, rows), np.uint8)
    zeros = RNG.integers(0, 2**bits, (blocks, rows), np.uint8)
    values = {
        "w.codes": ir.tensor(codes, dtype=dtype, name="w.codes"),
        "w.scales": ir.tensor(RNG.random((blocks, rows), np.float32), name="w.scales"),
        "w.zero_points": ir.tensor(zeros, dtype=dtype, name="w.zero_points"),
    }
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[M, {columns}] x, uint{bits}[{columns}, {rows}] "w.codes",
       float[{blocks}, {rows}] "w.scales", uint{bits}[{blocks}, {rows}] "w.zero_points")
      => (float[M, {rows}] y) {{
      w = DequantizeLinear <axis = 0, block_size = {size}> ("w.codes", "w.scales", "w.zero_points")
      y = MatMul (x, w)
    }}"""

    which = spec(rows, columns, bits=bits, block_size=size)
    check(tmp_path, model_of(text, values), which, atol=1e-4)  # of weights up to 255


def test_rows_of_signed_integers(tmp_path):
    codes = RNG.integers(-127, 128, (24, 5), np.int8)
    scales = RNG.random(5, np.float32)
    which = spec(5, 24, bits=8, block_size=0)
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 21}), ir_version=10)
    for name, array in (("w.codes", codes), ("w.scales", scales)):
        model.graph.register_initializer(ir.val(name, const_value=ir.tensor(array, name=name)))
    ir.save(model, tmp_path / "m.onnx", external_data="m.onnx.data")

    stored = open_matrices(tmp_path / "m.onnx", (which,))["w"]

    np.testing.assert_allclose(stored.rows(1, 4), (codes * scales).T[1:4], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_floats_of_either_width(tmp_path, dtype):
    array = RNG.standard_normal((6, 300)).astype(dtype)
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 21}), ir_version=10)
    tensor = ir.tensor(array, name="w.values")
    model.graph.register_initializer(ir.val("w.values", const_value=tensor))
    ir.save(model, tmp_path / "m.onnx", external_data="m.onnx.data")

    stored = open_matrices(tmp_path / "m.onnx", (spec(6, 300, bits=32, block_size=0),))["w"]

    np.testing.assert_array_equal(stored.rows(2, 5), array[2:5].astype(np.float32))


def test_a_matrix_that_is_not_in_the_graph_is_named(tmp_path):
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 21}), ir_version=10)
    ir.save(model, tmp_path / "m.onnx")
    message = (
        f"{tmp_path / 'm.onnx'} holds no weights named w, which its manifest lists; export again"
    )

    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        open_matrices(tmp_path / "m.onnx", (matrix("w (head)", (4, 4)),))


class Rounded(StoredMatrix):
    """Weights in memory that play the stored ones."""

    def rows(self, start, stop):
        return self.parts[start:stop]


def test_an_error_is_a_share_of_the_weights_and_does_not_depend_on_pieces(monkeypatch):
    array = RNG.standard_normal((9, 8)).astype(np.float32)
    weight = StoredWeight(MemorySource({"w": array}), "w", array.shape)
    stored = Rounded(matrix("w", array.shape), array * np.float32(1.1))

    whole = relative_error(stored, weight)
    monkeypatch.setattr(rounding_error, "CHUNK_WEIGHTS", 16)

    assert whole == pytest.approx(0.01, rel=1e-5)
    assert relative_error(stored, weight) == pytest.approx(whole)


def test_weights_that_are_all_zero_lose_nothing():
    zeros = np.zeros((3, 4), np.float32)
    weight = StoredWeight(MemorySource({"w": zeros}), "w", zeros.shape)

    assert relative_error(Rounded(matrix("w", zeros.shape), zeros), weight) == 0.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "checkpoint"
    return oracles.write_checkpoint(oracles.load("gqa3"), folder)


@pytest.mark.parametrize(
    ("target", "quantization", "bounds"),
    [
        ("cpu", Quantization(precision="int8"), (1e-6, 1e-4)),
        ("cpu", Quantization(precision="int4"), (1e-3, 2e-2)),
        ("cpu", Quantization(precision="int8", scheme="dynamic"), (1e-6, 2e-4)),
        ("portable", Quantization(precision="int4"), (1e-3, 2e-2)),
        ("cpu", Quantization(precision="fp32"), (0.0, 1e-14)),
        ("cuda", Quantization(precision="fp16"), (0.0, 1e-6)),
    ],
    ids=str,
)
def test_the_matrices_of_a_bundle_are_as_far_off_as_their_bits_allow(
    checkpoint, tmp_path, target, quantization, bounds
):
    bundle = oracles.write_bundle(checkpoint, tmp_path / "bundle", target, quantization)
    manifest = Manifest.read(bundle)
    weights = float_graphs.builder(checkpoint)(target).weights

    errors = measure_errors(bundle, manifest, weights)

    by_name = {tensor.name: tensor for tensor in manifest.quantization.tensors}
    assert list(errors) == list(by_name)
    coarse = [e for name, e in errors.items() if by_name[name].bits == manifest.quantization.bits]
    assert all(bounds[0] <= error <= bounds[1] for error in coarse)


def test_weights_of_another_model_are_refused(checkpoint, tmp_path):
    bundle = oracles.write_bundle(
        checkpoint, tmp_path / "bundle", "cpu", Quantization(precision="int8")
    )

    with pytest.raises(EvaluationError, match=r"^the float graph has none for model\.embed_tokens"):
        measure_errors(bundle, Manifest.read(bundle), {})
