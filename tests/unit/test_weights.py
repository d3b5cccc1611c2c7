"""Descriptions of weights: any rows of them are the rows of the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import MemorySource

from wiola_export.weights import (
    RandomSource,
    ScaledWeight,
    StackedWeight,
    StoredWeight,
    WeightTensor,
    initializer_weight,
    whole,
)

MATRIX = np.arange(60, dtype=np.float32).reshape(12, 5)
OTHER = -np.arange(35, dtype=np.float32).reshape(7, 5)
SOURCE = MemorySource({"m": MATRIX, "n": OTHER, "s": np.asarray(2.5, np.float32)})
STORED = StoredWeight(SOURCE, "m", (12, 5))
ROW_ORDER = tuple(reversed(range(12)))
COLUMN_ORDER = (3, 1, 0, 4, 2)
FORMS = {
    "stored": (STORED, MATRIX),
    "scaled": (ScaledWeight(STORED, 0.5), MATRIX / 2),
    "rows": (StoredWeight(SOURCE, "m", (12, 5), (0, ROW_ORDER)), MATRIX[::-1]),
    "columns": (StoredWeight(SOURCE, "m", (12, 5), (1, COLUMN_ORDER)), MATRIX[:, COLUMN_ORDER]),
    "stacked": (
        StackedWeight((STORED, StoredWeight(SOURCE, "n", (7, 5)), STORED)),
        np.concatenate([MATRIX, OTHER, MATRIX]),
    ),
}
every_form = pytest.mark.parametrize(("weight", "expected"), FORMS.values(), ids=FORMS)


@every_form
@given(ends=st.tuples(st.integers(0, 31), st.integers(0, 31)))
def test_rows_are_those_of_the_whole(weight, expected, ends):
    start, stop = sorted(min(end, len(expected)) for end in ends)
    if start < stop:
        assert np.array_equal(weight.rows(start, stop), expected[start:stop])


@every_form
def test_the_whole(weight, expected):
    assert weight.shape == expected.shape
    assert np.array_equal(whole(weight), expected)


def test_a_scalar_has_one_row_and_no_axis():
    weight = StoredWeight(SOURCE, "s", ())

    assert whole(weight).shape == ()
    assert whole(ScaledWeight(weight, 2.0)) == 5


def test_sources_are_named():
    weight = FORMS["stacked"][0]

    assert weight.sources == ("m", "n", "m")
    assert ScaledWeight(weight, 2.0).sources == ("m", "n", "m")


def test_nothing_is_read_before_it_is_asked_for():
    tensor = WeightTensor(StoredWeight(MemorySource({}), "absent", (3, 2)), "w")

    assert tensor.shape.numpy() == (3, 2)
    assert tensor.nbytes == 24
    with pytest.raises(KeyError):
        tensor.numpy()
    assert initializer_weight(None) is None


SHAPES = {"m": (150, 3), "v": (5,), "one": (70,), "s": ()}


@given(ends=st.tuples(st.integers(0, 150), st.integers(0, 150)))
def test_random_rows_do_not_depend_on_how_they_are_read(ends):
    source = RandomSource(SHAPES, {}, seed=3)
    start, stop = sorted(ends)

    if start < stop:
        expected = source.read_rows("m", 0, 150)[start:stop]
        assert np.array_equal(source.read_rows("m", start, stop), expected)


def test_random_weights_are_seeded_normal_and_differ_by_name():
    shapes = {"a": (400, 100), "b": (400, 100)}
    first, second = RandomSource(shapes, {}, 0), RandomSource(shapes, {}, 1)

    a, b = first.read_rows("a", 0, 400), first.read_rows("b", 0, 400)

    assert a.dtype == np.float32
    assert abs(a.std() - 0.02) < 2e-4
    assert abs(a.mean()) < 5e-4
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, second.read_rows("a", 0, 400))
    assert np.array_equal(a, RandomSource(shapes, {}, 0).read_rows("a", 0, 400))


def test_constants_of_random_weights():
    source = RandomSource(SHAPES, {"v": 1.0, "s": -3.0}, seed=0)

    assert source.read_rows("v", 1, 4).tolist() == [1, 1, 1]
    assert source.read_rows("s", 0, 1).shape == ()
    assert source.read_rows("s", 0, 1) == -3
