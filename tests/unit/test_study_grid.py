"""The grid of a study: what its names mean, and how cells are picked."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiola_export.errors import OptionError
from wiola_export.study.grid import GRID, Cell, pick

BY_NAME = {cell.name: cell for cell in GRID}


def names(cells):
    return [cell.name for cell in cells]


def test_every_name_is_one_of_a_kind_and_a_folder():
    assert len(BY_NAME) == len(GRID)
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in BY_NAME)


def test_no_two_cells_are_the_same_export():
    assert len({(cell.quantization, cell.budget) for cell in GRID}) == len(GRID)


@pytest.mark.parametrize(
    "cell", [c for c in GRID if re.match(r"int\d-\D+-\d+$", c.name)], ids=lambda c: c.name
)
def test_a_name_says_what_is_stored(cell):
    precision, rest = cell.name.split("-", 1)
    method, size = rest.rsplit("-", 1)

    stored = cell.quantization
    assert (stored.precision, stored.method, str(stored.block_size)) == (precision, method, size)


@pytest.mark.parametrize(("name", "bits"), [("mixed-4.6", 4.6), ("mixed-7.0", 7.0)])
def test_a_mixed_cell_spends_what_its_name_says(name, bits):
    assert BY_NAME[name].budget.bits_per_weight == bits


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_activations_of_8_bits_are_in_the_grid(scheme):
    assert BY_NAME[f"int8-{scheme}"].quantization.scheme == scheme


def test_nothing_wanted_is_everything():
    assert pick(None) == GRID


@given(st.lists(st.sampled_from(sorted(BY_NAME)), min_size=1))
def test_picked_cells_come_once_and_in_the_order_of_the_grid(wanted):
    assert names(pick(",".join(wanted))) == [name for name in BY_NAME if name in wanted]


def test_a_pattern_picks_all_that_fit():
    assert names(pick("int8-dynamic, int4-awq*-64")) == [
        "int8-dynamic", "int4-awq-64", "int4-awq-gptq-64",
    ]  # fmt: skip


@pytest.mark.parametrize("wanted", ["int5-gptq-32", "int8-dynamic,", "int4-?"])
def test_a_name_that_fits_nothing_lists_those_that_there_are(wanted):
    with pytest.raises(OptionError) as caught:
        pick(wanted)

    message = str(caught.value)
    assert message.startswith(f"--schemes: there is no {wanted.split(',')[-1]!r}; there are int8-")
    assert all(name in message for name in BY_NAME)


def test_a_cell_has_no_budget_unless_it_is_given_one():
    assert not Cell(name="one", quantization=GRID[0].quantization).budget.is_set
