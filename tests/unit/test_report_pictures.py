"""Pictures show what was measured, in order and to scale."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifests import DROP, manifest

from wiola_export.report.pictures.accuracy import divergences
from wiola_export.report.pictures.bundle import (
    Cell,
    Point,
    heat_map,
    parts_of,
    size_by_part,
    unbeaten,
)
from wiola_export.report.pictures.canvas import draw, power_of_ten
from wiola_export.report.size import measure_sizes

points = st.lists(
    st.builds(
        Point,
        st.just("b"),
        st.integers(1, 50),
        st.floats(1e-6, 1.0),
        st.none(),
    ),
    min_size=1,
    max_size=8,
)


@given(points)
def test_no_bundle_of_the_frontier_is_beaten_and_every_other_one_is(given_points):
    best = unbeaten(given_points)

    def beats(one, other):
        return one.size_bytes <= other.size_bytes and one.kl_nats <= other.kl_nats

    assert best
    for point in given_points:
        assert any(beats(one, point) for one in best)
    for one in best:
        assert not any(beats(other, one) and not beats(one, other) for other in given_points)


def test_the_parts_of_a_bundle_are_all_of_it():
    sizes = measure_sizes(manifest())

    assert sum(parts_of(sizes).values()) == sizes.total_bytes
    assert "weights" not in parts_of(sizes)


def test_a_bundle_is_drawn_beside_its_size_in_float16():
    svg = size_by_part("k", {"wiola-demo-int8": measure_sizes(manifest())})

    assert ">wiola-demo-int8<" in svg
    assert ">in float16<" in svg
    assert ">1.4 MiB<" in svg
    assert ">2.4 MiB<" in svg


def test_a_heat_map_has_a_row_for_each_kind_and_writes_each_value():
    cells = [Cell("embedding", None, 2e-5), Cell("attn.o", 0, 1e-5), Cell("attn.o", 1, 4e-3)]
    svg = heat_map("k", cells)

    for text in ("embedding", "attn.o", "2.0e-05", "1.0e-05", "4.0e-03", "layer"):
        assert f">{text}<" in svg


def test_a_heat_map_of_many_layers_leaves_the_values_to_the_table():
    svg = heat_map("k", [Cell("attn.o", layer, 1e-5 * (1 + layer)) for layer in range(40)])

    assert "e-05<" not in svg
    assert ">36<" in svg


def test_marks_of_a_histogram_are_those_of_the_table():
    svg = divergences("k", {"b": DROP})

    assert all(f">{name}<" in svg for name in ("median", "mean", "99 %"))


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "10⁰"), (1e-4, "10⁻⁴"), (5e-3, "5·10⁻³"), (2e11, "2·10¹¹")]
)
def test_powers_are_raised(value, text):
    assert power_of_ten(value) == text


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("cost $x_1$ & <b>", "cost $x_1$ &amp; &lt;b&gt;"), ("#010101", "#010101"), ("#01", "#01")],
)
def test_names_are_no_formulas_and_no_colours(name, drawn):
    def paint(figure):
        figure.text(0, 0, name)

    assert f">{drawn}<" in draw("k", (2, 1), paint)
