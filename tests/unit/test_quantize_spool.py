"""Weights that calibration has rounded reach the kernels code by code.

Axes: N rows, K input features, b blocks of a row, k weights of a block.
"""

import dataclasses
import re

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import distance, run_nodes
from support.oracles import MemorySource

from wiola_export.errors import QuantizationError
from wiola_export.passes.ort_kernels import OrtKernels
from wiola_export.passes.standard_kernels import StandardKernels
from wiola_export.passes.surgery import Chain
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.policy import Decision
from wiola_export.quantize.rounded import Rounding
from wiola_export.quantize.rounding import Codes, round_blocks, round_matrix
from wiola_export.quantize.spool import Spool
from wiola_export.weights import Factors, RescaledWeight, ScaledWeight, StackedWeight, StoredWeight

FORMS = [
    Blocks(bits=bits, block_size=size, symmetric=symmetric, scales=scales)
    for bits in (4, 8)
    for size in (32, 64, 128)
    for symmetric in (False, True)
    for scales in ("float32", "float16")
]
COLUMNS = (8, 40, 72, 100)
forms = st.sampled_from(FORMS)
every_form = pytest.mark.parametrize("form", FORMS, ids=str)
KERNELS = {"ort": OrtKernels(), "standard": StandardKernels()}


def random_codes(seed, rows, columns, form):
    """Return codes that no rounding would give, so that they cannot be found anew."""
    rng = np.random.default_rng(seed)
    blocks = -(-columns // form.block_size)
    zero_points = rng.integers(0, form.highest_code + 1, (rows, blocks), np.uint8)
    if form.symmetric:
        zero_points[:] = form.middle
    codes = rng.integers(0, form.highest_code + 1, (rows, blocks, form.block_size), np.uint8)
    flat = codes.reshape(rows, -1)
    flat[:, columns:] = zero_points[:, -1:]
    scales = rng.uniform(0.01, 0.1, (rows, blocks)).astype(form.scales)
    return Codes(codes, scales, zero_points)


def stored(name, shape):
    """Return a weight whose own numbers must never be looked at."""
    return StoredWeight(MemorySource({name: np.full(shape, np.nan, np.float32)}), name, shape)


def same(found, expected):
    for part in ("codes", "scales", "zero_points"):
        one, other = getattr(found, part), getattr(expected, part)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def cut(codes, start, stop):
    return Codes(codes.codes[start:stop], codes.scales[start:stop], codes.zero_points[start:stop])


@given(seed=st.integers(0, 999), form=forms, columns=st.sampled_from(COLUMNS),
       rows=st.integers(1, 9), data=st.data())  # fmt: skip
@settings(max_examples=60)
def test_any_rows_come_back(tmp_path_factory, seed, form, columns, rows, data):
    spool = Spool(tmp_path_factory.mktemp("spool"))
    codes = random_codes(seed, rows, columns, form)
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))

    spool.put("w", codes, form)

    same(spool["w"].read(start, stop), cut(codes, start, stop))
    assert spool["w"].form == form


def test_what_does_not_lie_row_by_row_in_memory_comes_back(tmp_path):
    form = Blocks(bits=4, block_size=32)
    codes = random_codes(0, 6, 64, form)
    turned = Codes(*(np.asfortranarray(part) for part in dataclasses.astuple(codes)))
    spool = Spool(tmp_path)

    spool.put("w", turned, form)

    same(spool["w"].read(0, 6), codes)


def test_a_second_rounding_replaces_the_first_and_no_other(tmp_path):
    form = Blocks(bits=8, block_size=32)
    spool = Spool(tmp_path)
    made = {name: random_codes(seed, 4, 40, form) for seed, name in enumerate("abcd")}

    for name in "abac":
        spool.put(name, made[name], form)
    spool.put("b", made["d"], form)

    assert list(spool) == ["a", "b", "c"]
    assert len(spool) == 3
    for name, expected in {"a": "a", "b": "d", "c": "c"}.items():
        same(spool[name].read(0, 4), made[expected])


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_scale_that_its_type_cannot_hold_is_refused(tmp_path, value):
    form = Blocks(bits=4, block_size=32, scales="float16")
    codes = random_codes(0, 3, 64, form)
    codes.scales[1, 1] = value
    message = (
        "layers.0.w has a scale beyond float16; check the checkpoint, or keep floating point with "
        "--fp16 or --fp32"
    )

    with pytest.raises(QuantizationError, match=f"^{re.escape(message)}$"):
        Spool(tmp_path).put("layers.0.w", codes, form)


# Rows of weights as graphs have them


@pytest.fixture
def parts(tmp_path):
    """Return three rounded weights and what rounds them: the second one is left to be rounded."""
    form = Blocks(bits=4, block_size=32)
    spool = Spool(tmp_path)
    made = {name: random_codes(seed, 5 + seed, 72, form) for seed, name in enumerate("abc")}
    for name in "ac":
        spool.put(name, made[name], form)
    array = np.random.default_rng(1).standard_normal((6, 72)).astype(np.float32)
    made["b"] = round_matrix(array, form)
    weights = (
        stored("a", (5, 72)),
        StoredWeight(MemorySource({"b": array}), "b", (6, 72)),
        stored("c", (7, 72)),
    )
    return form, Rounding(round_blocks, spool), weights, made


def test_rows_of_packed_weights_come_from_where_they_were_rounded(parts):
    form, rounding, weights, made = parts
    expected = Codes(
        *(np.concatenate([getattr(made[name], part) for name in "abc"])
          for part in ("codes", "scales", "zero_points"))
    )  # fmt: skip
    packed = StackedWeight(weights)

    for start in range(18):
        for stop in range(start + 1, 19):
            same(rounding.rows(packed, start, stop, form), cut(expected, start, stop))


def test_a_constant_factor_goes_into_the_scales(parts):
    form, rounding, weights, made = parts
    scaled = StackedWeight((ScaledWeight(weights[0], 0.3), weights[2]))

    found = rounding.rows(scaled, 3, 8, form)

    expected = cut(made["a"], 3, 5)
    same(cut(found, 0, 2), Codes(expected.codes, expected.scales * np.float32(0.3),
                                 expected.zero_points))  # fmt: skip
    same(cut(found, 2, 5), cut(made["c"], 0, 3))


def test_factors_of_calibration_are_in_the_codes_already(parts):
    form, rounding, weights, made = parts
    doubled = np.full(72, 2, np.float32)
    weight = RescaledWeight(weights[0], Factors(columns=doubled))

    same(rounding.rows(weight, 0, 5, form), made["a"])


def test_a_factor_that_the_scales_cannot_take_is_refused(tmp_path):
    form = Blocks(bits=4, block_size=32, scales="float16")
    spool, codes = Spool(tmp_path), random_codes(0, 3, 32, form)
    spool.put("w", codes, form)
    message = (
        "w has a scale beyond float16; check the checkpoint, or keep floating point with --fp16 "
        "or --fp32"
    )

    with pytest.raises(QuantizationError, match=f"^{re.escape(message)}$"):
        Rounding(round_blocks, spool).rows(ScaledWeight(stored("w", (3, 32)), 1e8), 0, 3, form)


# Kernels


def product(kernels, weight, decision, x):
    """Lower one weight and multiply with what comes out."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="one")
    value = ir.Value(
        name="x", shape=ir.Shape(x.shape), type=ir.TensorType(ir.DataType.FLOAT)
    )  # fmt: skip
    graph.inputs.append(value)
    chain = Chain(graph)
    result = kernels.linear(chain, value, kernels.recipe(weight, decision, "matrix"), "w")
    result.name = "y"
    graph.extend(chain.nodes)
    graph.outputs.append(result)
    return run_nodes(ir.Model(graph, ir_version=10), {"x": x})[0]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("form", [f for f in FORMS if f.scales == "float32"], ids=str)
def test_kernels_multiply_by_what_the_codes_stand_for(tmp_path, form, columns, name):
    """Packed, scaled, with a last block that is not full; integer inputs are rounded exactly."""
    spool = Spool(tmp_path)
    made = [random_codes(seed, 3 + seed, columns, form) for seed in range(2)]
    for index, codes in enumerate(made):
        spool.put(f"w{index}", codes, form)
    weights = [stored(f"w{index}", (3 + index, columns)) for index in range(2)]
    packed = StackedWeight((weights[0], ScaledWeight(weights[1], 0.5)))
    x = np.random.default_rng(columns).integers(-126, 127, (5, columns)).astype(np.float32)
    x[:, ::16] = 127

    found = product(
        KERNELS[name], packed, Decision(form, rounding=Rounding(round_blocks, spool)), x
    )

    matrix = np.concatenate([made[0].matrix(columns), made[1].matrix(columns) * np.float32(0.5)])
    expected = x.astype(np.float64) @ matrix.T
    assert distance(found, expected) < 2e-5 * np.abs(expected).max()
