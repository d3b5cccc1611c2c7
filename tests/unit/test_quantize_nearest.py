"""Nearest rounding of rows that no whole number of blocks fills, against one weight at a time.

Axes: n rows, K input features, b blocks of a row.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import quantizer_oracles as oracle

from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.packing import pad_to_blocks
from wiola_export.quantize.rounding import round_blocks, round_matrix

FORMS = [
    Blocks(bits=bits, block_size=size, symmetric=symmetric)
    for bits in (4, 8)
    for size in (32, 64, 128)
    for symmetric in (False, True)
]
COLUMNS = (8, 40, 72, 100)
forms = st.sampled_from(FORMS)
rows = st.sampled_from(COLUMNS).flatmap(
    lambda columns: arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.just(columns)),
        elements=st.floats(-8, 8, width=32, allow_subnormal=False),
    )
)


def plain(weight, form):
    return round_blocks(pad_to_blocks(weight, form.block_size), form, search=False)


def steps(made, columns):
    """Return the size of a step for every weight, (n, K)."""
    sizes = np.abs(made.scales.astype(np.float64))
    return np.repeat(sizes, made.codes.shape[-1], axis=1)[:, :columns]


@given(weight=rows, form=forms)
@settings(max_examples=80, deadline=None)
def test_each_weight_is_on_the_grid_of_its_own_block(weight, form):
    """Half a step more or less is a tie, or a zero point beside one."""
    made = plain(weight, form)

    expected = oracle.nearest(weight, form)
    gap = np.abs(made.matrix(weight.shape[1]) - expected)
    assert (gap <= steps(made, weight.shape[1]) * 1.001 + 1e-6).all()


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_nearly_all_weights_are_the_oracles(form, columns):
    weight = np.random.default_rng(columns).standard_normal((40, columns)).astype(np.float32)

    found = plain(weight, form).matrix(columns)

    same = np.isclose(found, oracle.nearest(weight, form), rtol=1e-5, atol=1e-6)
    assert same.mean() > 0.995


@given(weight=rows, form=forms)
@settings(max_examples=80, deadline=None)
def test_the_error_is_half_a_step_inside_the_range_and_one_at_its_ends(weight, form):
    columns = weight.shape[1]
    made = plain(weight, form)

    error = np.abs(made.matrix(columns).astype(np.float64) - weight)
    codes = made.codes.reshape(len(weight), -1)[:, :columns]
    inside = (codes > 0) & (codes < form.highest_code)
    assert (error <= steps(made, columns) / 2 * 1.0001 + 1e-6)[inside].all()
    assert (error <= steps(made, columns) * 1.0001 + 1e-6).all()


@given(weight=rows, form=forms)
@settings(max_examples=60, deadline=None)
def test_rows_do_not_depend_on_each_other(weight, form):
    whole = round_matrix(weight, form)

    for index in range(len(weight)):
        alone = round_matrix(weight[index : index + 1], form)
        np.testing.assert_array_equal(alone.codes[0], whole.codes[index])
        np.testing.assert_array_equal(alone.scales[0], whole.scales[index])


@given(weight=rows, form=forms)
@settings(max_examples=60, deadline=None)
def test_what_fills_the_last_block_is_zero(weight, form):
    made = round_matrix(weight, form)

    assert not made.dequantize().reshape(len(weight), -1)[:, weight.shape[1] :].any()
    assert made.matrix(weight.shape[1]).shape == weight.shape
