"""Blocks of weights as integers: what the error can be, at worst and at best.

Axes: n rows, b blocks, k weights of a block.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.packing import pack_nibbles, pad_to_blocks, unpack_nibbles
from wiola_export.quantize.rounding import round_blocks, round_rows

FORMS = [
    Blocks(bits=bits, block_size=16, symmetric=symmetric, scales=scales)
    for bits in (4, 8)
    for symmetric in (False, True)
    for scales in ("float32", "float16")
]
every_form = pytest.mark.parametrize("form", FORMS, ids=str)
SINGLE = [form for form in FORMS if form.scales == "float32"]

weights = st.floats(-8.0, 8.0, width=32, allow_subnormal=False)
blocks = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 3), st.integers(1, 2), st.just(16)), elements=weights
)


def squared(found, expected):
    """Return the squared error of each block, in float64."""
    return ((found.astype(np.float64) - expected) ** 2).sum(-1)


def half_steps(made):
    return np.abs(made.scales.astype(np.float64))[..., None] / 2


@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(1, 33)),
                     elements=st.integers(0, 15)))  # fmt: skip
def test_nibbles_come_back(codes):
    packed = pack_nibbles(codes)

    assert packed.shape == (codes.shape[0], -(-codes.shape[1] // 2))
    assert np.array_equal(unpack_nibbles(packed, codes.shape[1]), codes)


def test_the_first_nibble_is_the_low_one_and_odd_ends_are_zero():
    assert pack_nibbles(np.asarray([1, 2, 15], np.uint8)).tolist() == [0x21, 0x0F]


@given(st.integers(1, 70), st.sampled_from([16, 32, 64]))
def test_padding_is_zeros_at_the_end(columns, size):
    rows = np.arange(1, 2 * columns + 1, dtype=np.float32).reshape(2, columns)

    padded = pad_to_blocks(rows, size)

    assert padded.shape == (2, -(-columns // size), size)
    assert np.array_equal(padded.reshape(2, -1)[:, :columns], rows)
    assert not padded.reshape(2, -1)[:, columns:].any()


@pytest.mark.parametrize("form", [f for f in SINGLE if not f.symmetric], ids=str)
@given(blocks)
def test_without_search_the_error_is_at_most_half_a_step(form, values):
    """The zero point is rounded too, which can cost the ends of the range half a step more."""
    made = round_blocks(values, form, search=False)

    error = np.abs(made.dequantize().astype(np.float64) - values)
    inside = (made.codes > 0) & (made.codes < form.highest_code)
    assert (error <= half_steps(made) * 1.0001 + 1e-7)[inside].all()
    assert (error <= half_steps(made) * 2.0001 + 1e-7).all()


@pytest.mark.parametrize("form", [f for f in SINGLE if f.symmetric], ids=str)
@given(blocks)
def test_symmetric_rounding_promises_a_step_at_the_end_and_half_a_step_elsewhere(form, values):
    """The weight farthest from zero is exact; its mirror image would be one code short."""
    made = round_blocks(values, form, search=False)

    found = made.dequantize().astype(np.float64)
    error = np.abs(found - values)
    size = np.abs(values)
    tip = np.where(size == size.max(-1, keepdims=True), error, np.inf).min(-1)
    assert (tip <= half_steps(made)[..., 0] * 0.01 + 1e-6).all()
    inside = (made.codes > 0) & (made.codes < form.highest_code)
    assert (error <= half_steps(made) * 1.0001 + 1e-7)[inside].all()
    assert (error <= half_steps(made) * 2.0001 + 1e-7).all()


@pytest.mark.parametrize("form", SINGLE, ids=str)
@given(blocks)
def test_the_search_is_never_worse(form, values):
    plain = round_blocks(values, form, search=False)
    searched = round_blocks(values, form)

    before, after = squared(plain.dequantize(), values), squared(searched.dequantize(), values)
    slack = 1e-5 * (values.astype(np.float64) ** 2).sum(-1) + 1e-12
    assert (after <= before * 1.0001 + slack).all()


@pytest.mark.parametrize(("bits", "gain"), [(4, 0.95), (8, 0.999)])
def test_the_search_pays_on_normal_weights(bits, gain):
    values = np.random.default_rng(0).standard_normal((64, 8, 32)).astype(np.float32)
    form = Blocks(bits=bits, block_size=32)

    plain = squared(round_blocks(values, form, search=False).dequantize(), values).sum()
    searched = squared(round_blocks(values, form).dequantize(), values).sum()

    assert searched < gain * plain


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.003, -77.5, 1e-3])
@every_form
def test_a_constant_block_is_kept(form, value):
    made = round_blocks(np.full((1, 1, 16), value, np.float32), form)

    exact = 2e-3 if form.scales == "float16" else 1e-6
    assert np.abs(made.dequantize() - value).max() <= abs(value) * exact


@every_form
def test_zeros_are_zeros_whatever_lies_beside_them(form):
    """Zero is a code of its own, so that padding adds nothing."""
    values = np.random.default_rng(1).uniform(0.5, 2, (3, 2, 16)).astype(np.float32)
    values[:, :, 11:] = 0

    found = round_blocks(values, form).dequantize()

    assert not found[:, :, 11:].any()


@every_form
@pytest.mark.parametrize("sign", [1, -1])
def test_weights_on_one_side_of_zero_use_the_whole_range(form, sign):
    values = sign * np.linspace(0.25, 4, 16, dtype=np.float32).reshape(1, 1, 16)

    made = round_blocks(values, form)

    steps = form.middle if form.symmetric else form.highest_code
    assert np.abs(made.dequantize() - values).max() <= 4 / steps * 1.5
    assert np.ptp(made.codes.astype(int)) > steps * 0.8


@every_form
@pytest.mark.parametrize("outlier", [30.0, -30.0, 3e4])
def test_one_outlier_is_kept_within_a_few_steps(form, outlier):
    values = np.random.default_rng(2).uniform(-0.1, 0.1, (1, 1, 16)).astype(np.float32)
    values[0, 0, 5] = outlier

    made = round_blocks(values, form)

    assert abs(made.dequantize()[0, 0, 5] - outlier) <= abs(outlier) * 0.02
    assert squared(made.dequantize(), values) <= 16 * half_steps(made).max() ** 2 * 1.1


@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-30, 1e-8, 1e-5, 1e4])
@every_form
def test_scales_are_finite_at_any_size(form, size):
    """Whatever the weights, no infinity or NaN reaches a file."""
    values = np.linspace(-1, 1, 16, dtype=np.float64).reshape(1, 1, 16) * size
    values = values.astype(np.float32)

    with np.errstate(all="raise", under="ignore"):
        made = round_blocks(values, form)

    assert made.scales.dtype == form.scales
    assert np.isfinite(made.scales).all()
    assert np.isfinite(made.dequantize()).all()


@pytest.mark.parametrize("size", [1e-15, 1e-5, 1.0, 1e5, 1e15])
@pytest.mark.parametrize("form", SINGLE, ids=str)
def test_relative_error_does_not_depend_on_the_size(form, size):
    values = (np.linspace(-1, 1, 16).reshape(1, 1, 16) * size).astype(np.float32)

    error = np.abs(round_blocks(values, form).dequantize() - values).max()

    assert error <= 2.1 * size / form.highest_code


@every_form
def test_scales_that_float16_rounds_are_the_ones_that_codes_are_made_for(form):
    values = np.random.default_rng(4).standard_normal((8, 4, 16)).astype(np.float32) * 0.02

    made = round_blocks(values, form)

    scales = made.scales.astype(np.float64)[..., None]
    nearest = np.rint(values / scales + made.zero_points[..., None])
    assert np.array_equal(made.codes, nearest.clip(0, form.highest_code))


@settings(max_examples=50)
@given(arrays.arrays(np.float32, (3, 9), elements=weights))
def test_signed_rows_are_within_half_a_step_and_never_use_the_lowest_code(rows):
    codes, scales = round_rows(rows)

    error = np.abs(codes * scales[:, None].astype(np.float64) - rows)
    assert (error <= scales[:, None] * 0.5001 + 1e-7).all()
    assert codes.min() >= -127


def test_a_signed_row_of_zeros():
    codes, scales = round_rows(np.zeros((2, 4), np.float32))

    assert not codes.any()
    assert scales.tolist() == [0.0, 0.0]
