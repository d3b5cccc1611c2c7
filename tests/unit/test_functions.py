"""The ONNX bodies of the `wiola` operators against numpy, and against their torch side."""

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch
from support import paper
from support.graphs import distance, run_nodes

from wiola_export.families import operators as ops
from wiola_export.families.moment import operators as moments
from wiola_export.functions import DOMAIN, OPSET, load_function

RANDOM = np.random.default_rng(3)
SPIRAL = ops.Spiral(theta=500.0, divisor=3.0, amplitude=0.4, frequency=0.7)
ALL = (
    "CausalAttention",
    "ContextAttention",
    "DifferenceRouting",
    "GatedBlend",
    "HeadMean",
    "Linear",
    "MomentAttention",
    "QueryGate",
    "RMSNorm",
    "RunningMean",
    "SRPE",
    "SiLU",
    "SpiralRotary",
    "UnitNorm",
    "VarianceFeatures",
    "WRMSNorm",
)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def call(op_type, inputs, attributes=None, outputs=1):
    """Run one operator by its body alone."""
    values = [
        ir.Value(
            name=f"in_{i}",
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        )
        for i, array in enumerate(inputs)
    ]
    node = ir.node(op_type, values, attributes, domain=DOMAIN, num_outputs=outputs)
    for i, output in enumerate(node.outputs):
        output.name = f"out_{i}"
        output.type = ir.TensorType(values[0].dtype)
    imports = {"": OPSET, DOMAIN: 1}
    graph = ir.Graph(values, node.outputs, nodes=[node], opset_imports=imports, name="one")
    function = load_function(op_type)
    model = ir.Model(graph, ir_version=10, functions=[function])
    return run_nodes(model, {v.name: a for v, a in zip(values, inputs, strict=True)})


@pytest.mark.parametrize("op_type", ALL)
def test_a_body_uses_plain_operators_only(op_type):
    function = load_function(op_type)

    assert {node.domain for node in function} == {""}
    assert function.opset_imports == {"": OPSET}
    assert function.identifier() == (DOMAIN, op_type, "")


def test_an_unknown_operator_has_no_body():
    with pytest.raises(FileNotFoundError):
        load_function("Mystery")


def test_linear():
    x, weight = normal(2, 3, 8), normal(5, 8)

    (found,) = call("Linear", [x, weight])

    assert distance(found, x @ weight.T) < 1e-5


def test_silu():
    x = np.linspace(-30, 30, 61, dtype=np.float32)[None]

    (found,) = call("SiLU", [x])

    assert distance(found, paper.silu(x.astype(np.float64))) < 1e-5


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_wrms_norm_keeps_its_statistics_in_float32(dtype):
    """The square of 800 is beyond float16."""
    x, weight, offset = (normal(*s).astype(dtype) for s in ((2, 3, 16), (16,), (16,)))
    x[..., 4] *= 800

    (found,) = call("WRMSNorm", [x, weight, offset], {"epsilon": 1e-6})

    z = x.astype(np.float64) + offset
    expected = weight * z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-6)
    assert found.dtype == dtype
    assert distance(found, expected) < (1e-5 if dtype == np.float32 else 5e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rms_norm_is_a_wrms_norm_without_offset(dtype):
    """In float32 too: the square of 800 is beyond float16."""
    x, weight = normal(2, 3, 16).astype(dtype), normal(16).astype(dtype)
    x[..., 4] *= 800

    (found,) = call("RMSNorm", [x, weight], {"epsilon": 1e-6})

    (shifted,) = call("WRMSNorm", [x, weight, np.zeros_like(weight)], {"epsilon": 1e-6})
    torch_side = ops.rms_norm(torch.from_numpy(x), torch.from_numpy(weight), 1e-6)
    assert found.dtype == dtype
    assert np.array_equal(found, shifted)
    assert distance(torch_side, found) < (1e-5 if dtype == np.float32 else 5e-3)


@pytest.mark.parametrize("size", [2, 16, 24])
def test_srpe(size):
    x, positions = normal(2, 3, 2 * size), np.asarray([[0, 1, 2], [7, 200, 2047]])
    attributes = {"head_size": size, "theta": 500.0, "divisor": 3.0}
    attributes |= {"amplitude": 0.4, "frequency": 0.7}

    (found,) = call("SRPE", [x, positions], attributes)

    torch_side = ops.srpe(torch.from_numpy(x), torch.from_numpy(positions), size, SPIRAL)
    expected = spiral(x, positions, size)
    assert distance(found, expected) < 2e-3  # the angle itself is a float32 of up to 2700
    assert distance(torch_side, expected) < 2e-3


def spiral(x, positions, size):
    """Rotate and stretch in float64."""
    omega = 500.0 ** (-np.arange(0, size, 2) / size)
    turned = positions[..., None, None] * omega
    return rotate(x, (1 + 0.4 * np.sin(turned * 0.7)) * np.exp(1j * turned * (1 + 1 / 3)), size)


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("size", [2, 16, 24])
def test_spiral_rotary(size, alpha):
    """With alpha 0 it is the rotary embedding."""
    x, positions = normal(2, 3, 2 * size), np.asarray([[0, 1, 2], [7, 200, 2047]])
    attributes = {"head_size": size, "theta": 500.0, "alpha": alpha}

    (found,) = call("SpiralRotary", [x, positions], attributes)

    torch_side = ops.spiral_rotary(
        torch.from_numpy(x), torch.from_numpy(positions), size, (500.0, alpha)
    )
    omega = 500.0 ** (-np.arange(0, size, 2) / size)
    if alpha:
        omega *= 1 + alpha * np.sqrt(np.arange(1, size // 2 + 1)) / np.sqrt(size / 2)
    expected = rotate(x, np.exp(1j * positions[..., None, None] * omega), size)
    assert distance(found, expected) < 2e-3  # as for SRPE
    assert distance(torch_side, expected) < 2e-3


def rotate(x, factor, size):
    """Multiply the pairs (j, j + D/2) as complex numbers."""
    heads = x.astype(np.float64).reshape(*x.shape[:2], -1, size)
    pairs = (heads[..., : size // 2] + 1j * heads[..., size // 2 :]) * factor
    return np.concatenate([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("past", [0, 1, 4])
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1)])
def test_causal_attention(past, new, heads):
    count, groups = heads
    q, k, v = normal(2, new, count * 8), normal(2, new, groups * 8), normal(2, new, groups * 8)
    cache = normal(2, groups, past, 8), normal(2, groups, past, 8)
    attributes = {"num_heads": count, "kv_num_heads": groups}

    found = call("CausalAttention", [q, k, v, *cache], attributes, outputs=3)

    keys, values = (grown(c, n, groups) for c, n in zip(cache, (k, v), strict=True))
    expected = np.empty((2, new, count, 8))
    for b, t, h in np.ndindex(2, new, count):
        g, visible = h // (count // groups), past + t + 1
        query = q.reshape(2, new, count, 8)[b, t, h]
        expected[b, t, h] = paper.attend(query, keys[b, g, :visible], values[b, g, :visible])
    assert distance(found[0], expected.reshape(2, new, -1)) < 1e-5
    assert np.array_equal(found[1], keys)
    assert np.array_equal(found[2], values)


def grown(cache, new, groups):
    split = new.reshape(*new.shape[:2], groups, -1).transpose(0, 2, 1, 3)
    return np.concatenate([cache, split], axis=2)


@pytest.mark.parametrize("summaries", [1, 2, 3])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1)])
def test_context_attention(summaries, heads):
    count, groups = heads
    q = normal(2, 3, count * 8)
    k, v = normal(2, 3, summaries, groups * 8), normal(2, 3, summaries, groups * 8)
    attributes = {"num_heads": count, "kv_num_heads": groups}

    (found,) = call("ContextAttention", [q, k, v], attributes)

    expected = np.empty((2, 3, count, 8))
    for b, t, h in np.ndindex(2, 3, count):
        g = h // (count // groups)
        keys, values = (a[b, t].reshape(summaries, groups, 8)[:, g] for a in (k, v))
        expected[b, t, h] = paper.attend(q.reshape(2, 3, count, 8)[b, t, h], keys, values)
    assert distance(found, expected.reshape(2, 3, -1)) < 1e-5


@pytest.mark.parametrize("blend_logit", [-50.0, -3.0, 0.0, 6.0, 50.0])
def test_gated_blend(blend_logit):
    own, context, gate = normal(2, 3, 8), normal(2, 3, 8), normal(2, 3, 8)

    (found,) = call("GatedBlend", [own, context, gate, np.asarray(blend_logit, np.float32)])

    beta = 1 / (1 + math.exp(-blend_logit))
    assert distance(found, paper.sigmoid(gate) * ((1 - beta) * own + beta * context)) < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_head_mean_adds_in_float32(dtype):
    """The sum of four times 30000 is beyond float16."""
    x = normal(2, 3, 4 * 8).astype(dtype)
    x[..., ::8] = 30_000

    (found,) = call("HeadMean", [x], {"num_heads": 4})

    expected = x.astype(np.float64).reshape(2, 3, 4, 8).mean(axis=2)
    assert found.dtype == dtype
    assert distance(found[..., 1:], expected[..., 1:]) < (1e-6 if dtype == np.float32 else 1e-3)
    assert np.array_equal(found[..., 0], np.full((2, 3), 30_000, dtype))
    assert distance(ops.head_mean(torch.from_numpy(x), 4), found) < 1e-3


def test_query_gate():
    q, gate = normal(2, 3, 4 * 8), 3 * normal(2, 3, 4)

    (found,) = call("QueryGate", [q, gate], {"num_heads": 4})

    expected = q.reshape(2, 3, 4, 8) * paper.sigmoid(gate)[..., None]
    assert distance(found, expected.reshape(2, 3, -1)) < 1e-6
    torch_side = ops.query_gate(torch.from_numpy(q), torch.from_numpy(gate), 4)
    assert distance(torch_side, found) < 1e-6


def test_running_mean():
    """Each row has seen another number of tokens before."""
    y, past_sum = normal(2, 4, 8), normal(2, 8) * 30
    counts = np.asarray([[1, 2, 3, 4], [41, 42, 43, 44]])
    inverse = (1 / counts[..., None]).astype(np.float32)

    mean, total = call("RunningMean", [y, past_sum, inverse], outputs=2)

    sums = past_sum[:, None] + np.cumsum(y, axis=1)
    assert distance(mean, sums / counts[..., None]) < 1e-5
    assert distance(total, sums[:, -1]) < 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_unit_norm_is_an_rms_norm_of_gain_one(dtype):
    x = (normal(2, 3, 16) * 800).astype(dtype)

    (found,) = call("UnitNorm", [x], {"epsilon": 1e-6})

    (gained,) = call("RMSNorm", [x, np.ones(16, dtype)], {"epsilon": 1e-6})
    assert found.dtype == dtype
    assert np.array_equal(found, gained)
    assert distance(moments.unit_norm(torch.from_numpy(x), 1e-6), found) < 5e-3


@pytest.mark.parametrize("past", [0, 1, 4])
@pytest.mark.parametrize("new", [1, 3])
def test_moment_attention(past, new):
    """Moments as they are defined, in float64; values far from zero cancel all the same."""
    q, k, v = normal(2, new, 3 * 8), normal(2, new, 3 * 8), normal(2, new, 3 * 8) + 5
    cache = normal(2, 3, past, 8), normal(2, 3, past, 8) + 5

    found = call("MomentAttention", [q, k, v, *cache], {"num_heads": 3}, outputs=4)

    keys, values = (grown(c, n, 3).astype(np.float64) for c, n in zip(cache, (k, v), strict=True))
    mean, variance = np.empty((2, 2, new, 3, 8))
    for b, t, h in np.ndindex(2, new, 3):
        seen = slice(past + t + 1)
        query = q.reshape(2, new, 3, 8)[b, t, h]
        mean[b, t, h] = paper.attend(query, keys[b, h, seen], values[b, h, seen])
        second = paper.attend(query, keys[b, h, seen], values[b, h, seen] ** 2)
        variance[b, t, h] = second - mean[b, t, h] ** 2
    assert distance(found[0], mean.reshape(2, new, -1)) < 1e-5
    assert distance(found[1], variance.reshape(2, new, -1)) < 1e-5
    assert np.array_equal(found[2], keys)
    assert np.array_equal(found[3], values)
    if not past:
        assert not found[1][:, 0].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [0, 1e-30, 1e-9, 1e-6, 1e-3, 0.1, 10, 1e4, 1e30])
def test_variance_features_of_any_size(size, dtype):
    """ONNX has no log1p; the body's own is as precise."""
    if size > 1e4 and dtype == np.float16:
        pytest.skip("beyond float16")
    variance = (np.linspace(0, 2, 12).reshape(1, 2, 6) * size).astype(dtype)

    (found,) = call("VarianceFeatures", [variance], {"scale": 0.1, "epsilon": 1e-6})

    r = np.log1p(variance.astype(np.float64) / np.float32(0.1))
    m = (r * r).mean(-1, keepdims=True)
    magnitude = np.log1p(m / (np.sqrt(m + 1e-6) + 1e-3) / (1 + 1e-3))
    expected = np.concatenate([r / np.sqrt(m + 1e-6), magnitude], axis=-1)
    tolerance, smallest = (3e-6, 1e-30) if dtype == np.float32 else (1e-3, 1e-7)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=smallest)
    torch_side = moments.variance_features(torch.from_numpy(variance).float(), 0.1, 1e-6)
    np.testing.assert_allclose(torch_side, expected, rtol=3e-6, atol=1e-30)


def test_difference_routing():
    query, keys, updates = normal(2, 3, 16), 3 * normal(2, 2, 3, 16), normal(2, 2, 3, 10)

    (found,) = call("DifferenceRouting", [query, *keys, *updates])

    scores = (query.astype(np.float64) * keys).sum(-1) / 4
    weights = np.exp(scores) / np.exp(scores).sum(0)
    assert distance(found, (weights[..., None] * updates).sum(0)) < 1e-5
