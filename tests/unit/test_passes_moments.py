"""Attention to mean and variance on a shared cache, against the body of its operator."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracles
from support.graphs import distance, run_nodes

from wiola_export.errors import LoweringError
from wiola_export.functions import DOMAIN, OPSET, load_function
from wiola_export.options import Quantization
from wiola_export.passes.fuse_moments import FuseMoments
from wiola_export.passes.quantize_cache import QuantizeCache
from wiola_export.passes.row_lengths import RowLengths

HEADS, SIZE, CAPACITY = 3, 8, 16
FLOAT, INT = ir.DataType.FLOAT, ir.DataType.INT64


def build(fused):
    """Return a graph of one call, and which names its inputs have."""

    def value(name, dtype, *axes):
        return ir.Value(name=name, shape=ir.Shape(axes), type=ir.TensorType(dtype))

    flat, cache = ("B", "T", HEADS * SIZE), ("B", HEADS, "P", SIZE)
    ids, lengths = value("input_ids", INT, "B", "T"), value("past_lengths", INT, "B")
    q, k, v = (value(name, FLOAT, *flat) for name in "qkv")
    past = [value(name, FLOAT, *cache) for name in ("past_key", "past_value")]
    node = ir.node(
        "MomentAttention", [q, k, v, *past], {"num_heads": HEADS}, domain=DOMAIN, num_outputs=4
    )
    for output, name in zip(node.outputs, ("mean", "variance", "keys", "values"), strict=True):
        output.name, output.type = name, ir.TensorType(FLOAT)
        output.shape = ir.Shape(flat if name in ("mean", "variance") else cache)
    inputs = [ids, lengths, q, k, v, *past]
    imports = {"": OPSET, DOMAIN: 1}
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports=imports, name="moments")
    model = ir.Model(graph, ir_version=10, functions=[load_function("MomentAttention")])
    if fused:
        FuseMoments(RowLengths(token_ids="input_ids", past_lengths="past_lengths"))(model)
    return model


PLAIN, FUSED = build(fused=False), build(fused=True)


def feed(lengths, new, qkv, caches):
    ids = np.zeros((len(lengths), new), np.int64)
    arrays = (ids, np.asarray(lengths, np.int64), *qkv, *caches)
    names = ("input_ids", "past_lengths", "q", "k", "v", "past_key", "past_value")
    return dict(zip(names, arrays, strict=True))


def plain(new, qkv, caches):
    used = feed([0] * len(qkv[0]), new, qkv, caches)
    return run_nodes(PLAIN, used)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def empty(batch, size=2 * SIZE):
    return [np.zeros((batch, HEADS, CAPACITY, size), np.float32) for _ in range(2)]


def test_rows_decode_together_each_at_its_own_length():
    """Two rows of three and five tokens, prefilled alone: a step of both is a step of each."""
    lengths, expected, caches = [3, 5], [], empty(2)
    step = [normal(9 + i, 2, 1, HEADS * SIZE) for i in range(3)]
    for row, length in enumerate(lengths):
        prompt = [normal(10 * row + i, 1, length, HEADS * SIZE) for i in range(3)]
        nothing = [np.zeros((1, HEADS, 0, SIZE), np.float32)] * 2
        _, _, *grown = plain(length, prompt, nothing)
        expected.append(plain(1, [x[row : row + 1] for x in step], grown)[:2])
        _, _, *filled = run_nodes(FUSED, feed([0], length, prompt, empty(1)))
        for cache, part in zip(caches, filled, strict=True):
            cache[row] = part[0]

    mean, variance, *_ = run_nodes(FUSED, feed(lengths, 1, step, caches))

    for row, (one_mean, one_variance) in enumerate(expected):
        assert distance(mean[row], one_mean[0]) < 1e-6
        assert distance(variance[row], one_variance[0]) < 1e-5


@settings(max_examples=20)
@given(st.integers(0, 99), st.floats(-1e3, 1e3, width=32), st.integers(1, 9))
def test_the_first_position_has_no_variance_at_all(seed, offset, new):
    q, k, v = (normal(seed + i, 1, new, HEADS * SIZE) for i in range(3))

    mean, variance, *_ = run_nodes(FUSED, feed([0], new, [q, k, v + offset], empty(1)))

    assert not variance[:, 0].any()
    assert (variance >= 0).all()
    assert np.array_equal(mean[:, 0], (v + offset)[:, 0])


@pytest.mark.parametrize("offset", [0, 100, 10_000])
def test_values_far_from_zero_keep_their_variance(offset):
    q, k, v = (normal(i, 1, 9, HEADS * SIZE) for i in range(3))
    v = np.round(v * 512) / 512  # so that adding is exact
    nothing = [np.zeros((1, HEADS, 0, SIZE), np.float32)] * 2

    _, variance, *_ = run_nodes(FUSED, feed([0], 9, [q, k, v + offset], empty(1)))

    # The mean of large values is itself rounded, to their last digit.
    assert distance(variance, plain(9, [q, k, v], nothing)[1]) < 1e-5 + 1e-6 * offset


def test_caches_are_twice_as_wide_and_hold_squares_beside_values():
    q, k, v = (normal(i, 1, 4, HEADS * SIZE) for i in range(3))

    _, _, keys, values = run_nodes(FUSED, feed([0], 4, [q, k, v], empty(1)))

    per_head = v.reshape(1, 4, HEADS, SIZE).transpose(0, 2, 1, 3)
    assert [list(x.shape) for x in FUSED.graph.inputs[5:]] == [["B", HEADS, "C", 2 * SIZE]] * 2
    assert np.array_equal(values[:, :, :4, :SIZE], per_head)
    assert distance(values[:, :, :4, SIZE:], (per_head - per_head[:, :, :1]) ** 2) < 1e-6
    assert not keys[..., SIZE:].any()


def test_a_second_run_finds_nothing():
    model = FUSED.clone()

    assert not FuseMoments(RowLengths(token_ids="input_ids", past_lengths="past_lengths"))(
        model
    ).modified


def test_a_cache_in_8_bits_is_refused():
    """The first value is read from it, and squares of codes are no squares of values."""
    graph, _ = oracles.lowered(oracles.load("moment_odd"), "cpu", Quantization(precision="fp32"))
    caches = [value for value in graph.graph.inputs if len(value.shape) == 4]
    scales = {value.name: np.ones((3, value.shape[3]), np.float32) for value in caches}

    with pytest.raises(LoweringError) as caught:
        QuantizeCache(scales)(graph)

    assert str(caught.value) == (
        "the cache past_key_values.0.value is read by GroupQueryAttention, Slice; as int8 it can "
        "serve one attention alone; keep it in floating point"
    )


@pytest.mark.parametrize(("target", "precision"), [("cuda", "fp16"), ("portable", "fp32")])
def test_elsewhere_moments_are_plain_operators_in_float32(target, precision):
    """With caches that grow: a graph says so by the axes of its state."""
    case = oracles.load("moment_odd")

    graph, _ = oracles.lowered(case, target, Quantization(precision=precision))

    caches = [value for value in graph.graph.inputs if len(value.shape) == 4]
    assert {str(value.shape) for value in caches} == {"[B,3,P,20]"}
    assert {value.dtype for value in caches} == {FLOAT}
    softmaxes = [node for node in graph.graph if node.op_type == "Softmax"]
    assert len(softmaxes) == case.config.num_hidden_layers
    assert {node.outputs[0].dtype for node in softmaxes} <= {FLOAT, None}
