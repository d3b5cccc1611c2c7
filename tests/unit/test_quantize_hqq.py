"""Half-quadratic quantization against the published iteration, one block at a time.

Axes: n rows, b blocks of a row, k weights of a block.
"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import quantizer_oracles as oracle

from wiola_export.errors import OptionError
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.hqq import hqq_blocks
from wiola_export.quantize.packing import pad_to_blocks
from wiola_export.quantize.rounding import round_blocks, spanning

FORMS = [
    Blocks(bits=bits, block_size=size, scales=scales)
    for bits in (4, 8)
    for size in (16, 32, 64, 128)
    for scales in ("float32", "float16")
]
every_form = pytest.mark.parametrize("form", FORMS, ids=str)
forms = st.sampled_from(FORMS)
COLUMNS = (8, 40, 72, 100, 128)


def blocks_of(seed, features, form, *, outliers=0.02):
    """Return normal weights, some of them ten times as large, in blocks."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((3, features))
    rows *= np.where(rng.random(rows.shape) < outliers, 10, 1)
    return pad_to_blocks(rows.astype(np.float32), form.block_size)


def loss(blocks, made):
    """Return Σ |w − ŵ|^p of each block, in float64."""
    return (np.abs(made.dequantize().astype(np.float64) - blocks) ** oracle.NORM).sum(-1)


def losses_of(blocks, form):
    """Return the loss of each block with the oracle's ranges, in the type of the form."""
    found = np.empty(blocks.shape[:2])
    for place in np.ndindex(found.shape):
        weights = blocks[place].astype(np.float64)
        found[place] = oracle.hqq_loss(weights, *oracle.hqq_block(weights, form), form.highest_code)
    return found


@given(seed=st.integers(0, 10_000), form=forms, features=st.sampled_from(COLUMNS))
@settings(max_examples=40, deadline=None)
def test_ranges_are_as_good_as_those_of_the_loop(seed, form, features):
    """A code beside a tie leads elsewhere: the losses tell whether that matters."""
    blocks = blocks_of(seed, features, form)

    made = hqq_blocks(blocks, form)

    np.testing.assert_allclose(loss(blocks, made), losses_of(blocks, form), rtol=0.05)


@pytest.mark.parametrize("bits", [4, 8])
def test_nearly_all_ranges_are_those_of_the_loop(bits):
    form = Blocks(bits=bits, block_size=32)
    blocks = blocks_of(1, 3200, form)

    made = hqq_blocks(blocks, form)

    expected = np.asarray([[oracle.hqq_block(block, form) for block in row] for row in blocks])
    same = np.isclose(made.scales, expected[..., 0], rtol=1e-4)
    assert (same & (made.zero_points == expected[..., 1])).mean() > 0.95


@given(seed=st.integers(0, 10_000), form=forms, features=st.sampled_from(COLUMNS))
@settings(max_examples=60, deadline=None)
def test_no_block_is_worse_than_with_the_range_that_spans_it(seed, form, features):
    blocks = blocks_of(seed, features, form, outliers=0.1)
    scales, zero_points = spanning(blocks, form)
    stored = scales.astype(form.scales).astype(np.float64)

    made = hqq_blocks(blocks, form)

    for place in np.ndindex(scales.shape):
        before = oracle.hqq_loss(
            blocks[place].astype(np.float64), stored[place], zero_points[place], form.highest_code
        )
        assert loss(blocks, made)[place] <= before * 1.0001 + 1e-6


@pytest.mark.parametrize(("bits", "gain"), [(4, 0.99), (8, 0.98)])
@pytest.mark.parametrize("outliers", [0.0, 0.02])
def test_the_usual_error_is_smaller_than_with_the_least_squared_one(bits, gain, outliers):
    """That is what the method is for; zero points alone would gain nothing in whole steps."""
    form = Blocks(bits=bits, block_size=32)
    blocks = blocks_of(4, 3200, form, outliers=outliers)

    made, squares = hqq_blocks(blocks, form), round_blocks(blocks, form)

    assert loss(blocks, made).sum() < gain * loss(blocks, squares).sum()


@given(blocks=arrays.arrays(np.float32, (2, 2, 16), elements=st.floats(-8, 8, width=32)),
       bits=st.sampled_from([4, 8]))  # fmt: skip
def test_codes_are_the_nearest_of_their_range(blocks, bits):
    form = Blocks(bits=bits, block_size=16)

    made = hqq_blocks(blocks, form)

    exact = blocks / made.scales[..., None].astype(np.float64) + made.zero_points[..., None]
    assert (made.scales > 0).all()
    assert np.abs(made.codes - exact.clip(0, form.highest_code)).max() <= 0.5001


@pytest.mark.parametrize("features", COLUMNS)
@every_form
def test_what_fills_the_last_block_is_zero(form, features):
    made = hqq_blocks(blocks_of(2, features, form), form)

    assert not made.dequantize().reshape(3, -1)[:, features:].any()


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-30, 1e-8, 1e-5, 1e4])
@every_form
def test_a_block_of_any_size_is_kept_as_well_as_its_scale(form, size):
    """In float16 the scale of a tiny block is off by up to half of the smallest number, 2^-24."""
    ramp = np.linspace(-1, 1, form.block_size).reshape(1, 1, -1) * size

    made = hqq_blocks(ramp.astype(np.float32), form)

    assert made.scales.dtype == form.scales
    assert np.isfinite(made.dequantize()).all()
    least = form.highest_code * 2.0**-25 if form.scales == "float16" else 1e-38
    assert np.abs(made.dequantize() - ramp).max() <= max(size / 4, least)


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_need_a_form_that_stores_them(bits):
    """The symmetric kernel would read every weight off its place."""
    form = Blocks(bits=bits, block_size=32, symmetric=True)
    message = (
        "--method hqq looks for zero points, which --symmetric leaves out; drop --symmetric, or "
        "take --method nearest"
    )

    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        hqq_blocks(blocks_of(3, 64, form), form)
