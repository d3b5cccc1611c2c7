"""Sizes add up, every matrix is counted, and figures are written as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifests import MATRICES, manifest, matrix

from wiola_export.evaluate.bootstrap import Interval
from wiola_export.report.coverage import measure_coverage
from wiola_export.report.figures import (
    code,
    fixed,
    percent,
    points,
    scientific,
    seconds,
    significant,
    size,
    span,
)
from wiola_export.report.size import measure_sizes, part_of
from wiola_export.report.tensors import list_tensors, place_of


def test_documents_do_not_count_as_the_bundle():
    sizes = measure_sizes(manifest())

    assert sizes.by_file == {
        "graph": 50_000,
        "weights": 1_161_216 + 4096,
        "tokenizer": 266_648,
        "other": 0,
    }
    assert sizes.total_bytes == sum(sizes.by_file.values())


def test_parts_add_up_to_the_weights():
    sizes = measure_sizes(manifest())

    assert sum(sizes.by_part.values()) == sizes.by_file["weights"]
    assert sizes.by_part["vectors and alignment"] == 4096


def test_matrices_inside_the_graph_file_leave_no_rest():
    sizes = measure_sizes(manifest(files={"model.onnx": manifest().files["model.onnx"]}))

    assert sizes.by_file["weights"] == 0
    assert "vectors and alignment" not in sizes.by_part


def test_shared_bytes_count_once():
    sizes = measure_sizes(manifest())
    weights = 4096 * 192 + 512 * 192 + 1152 * 192 + 192 * 8

    assert sizes.matrices_fp16_bytes == 2 * weights
    assert sizes.bits_per_weight == pytest.approx(8 * sizes.matrices_bytes / weights)


def test_a_bundle_without_matrices_has_no_bits_per_weight():
    sizes = measure_sizes(manifest([]))

    assert sizes.bits_per_weight is None
    assert sizes.by_part == {"vectors and alignment": 4096}


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("model.embed_tokens.weight", "embedding and head"),
        ("lm_head.weight", "embedding and head"),
        ("model.layers.11.attn.q_proj.weight", "attention"),
        ("model.layers.0.self_attn.gate_fc2.weight", "attention"),
        ("model.layers.3.multihead_attention.out.weight", "attention"),
        ("model.layers.3.mlp.down_proj.weight", "feed-forward"),
        ("model.layers.3.ffn.gate_a.weight", "feed-forward"),
        ("blocks.3.w_var.weight", "w_var"),
        ("blocks.3.mixer.0.weight", "mixer"),
    ],
)
def test_a_matrix_belongs_to_a_part_by_its_name_in_the_checkpoint(source, part):
    assert part_of(matrix("x", (2, 2), sources=[source])) == part


def test_a_matrix_without_a_source_is_known_by_its_own_name():
    assert part_of(matrix("head", (2, 2))) == "embedding and head"
    assert part_of(matrix("tables", (2, 2))) == "tables"


def test_every_matrix_is_quantized_or_kept_with_a_reason():
    coverage = measure_coverage(manifest().quantization)

    assert (coverage.quantized, coverage.matrices) == (4, len(MATRICES))
    assert [(k.name, k.reason) for k in coverage.kept] == [
        ("layers.0.fusion", "8 columns are less than one block")
    ]
    assert coverage.by_bits == {"8": 4, "32": 1}
    assert coverage.sentence() == "quantized 4 of 5 matrices; kept float: 1"


def test_full_coverage_says_none():
    coverage = measure_coverage(manifest(MATRICES[:3]).quantization)

    assert coverage.sentence() == "quantized 3 of 3 matrices; kept float: none"


def test_a_matrix_kept_by_choice_says_so():
    kept = measure_coverage(manifest([matrix("w", (4, 4), bits=16)]).quantization).kept

    assert kept[0].reason == "the chosen precision is floating point"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42.0, "42"),
        (8.388, "8.39"),
        (4951.3, "4,950"),
        (1234567.0, "1,230,000"),
        (0.012, "0.012"),
    ],
)
def test_significant_digits(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100.00 %"),
        (0.99999, "99.99 %"),
        (0.98, "98.00 %"),
        (0.29, "29.00 %"),
        (0, "0.00 %"),
    ],
)
def test_only_all_of_it_is_a_hundred_percent(share, text):
    assert percent(share) == text


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_percent_is_never_rounded_up(part, rest):
    share = part / (part + rest)

    assert float(percent(share).removesuffix(" %")) <= share * 100 + 1e-6


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (266_648, "260.4 KiB"), (5 << 20, "5.0 MiB")],
)
def test_sizes(count, text):
    assert size(count) == text


def test_gibibytes_stay_mebibytes_with_separators():
    assert size(3 << 30) == "3,072.0 MiB"


def test_small_numbers_and_durations():
    assert (scientific(0.0), scientific(2.413e-4)) == ("0", "2.41e-04")
    assert (seconds(1.234), seconds(0.0517)) == ("1.23 s", "51.7 ms")


def test_intervals_and_differences():
    assert span(Interval(1.0, 1.25), fixed(2)) == "1.00 to 1.25"
    assert span(None, fixed(2)) == "–"
    assert (points(-0.0031), points(-1e-9), points(0.02)) == ("−0.310 pp", "0.000 pp", "2.000 pp")


@given(st.text())
def test_a_name_never_ends_its_mark_its_cell_or_its_line(name):
    marked = code(name)

    assert (marked[0], marked[-1], marked.count("`")) == ("`", "`", 2)
    assert "|" not in marked
    assert marked.isprintable()


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.3.attn.q_proj+k_proj.weight", (3, "attn.q+k")),
        ("model.layers.11.ffn.down_a.weight", (11, "ffn.down_a")),
        ("blocks.0.w_var", (0, "w_var")),
        ("model.embed_tokens.weight (embedding)", (None, "embedding")),
        ("lm_head.weight", (None, "lm_head")),
    ],
)
def test_a_matrix_has_a_layer_and_a_kind(name, place):
    assert place_of(name) == place


def test_what_was_not_measured_of_a_matrix_is_none():
    found = list_tensors(manifest().quantization, {"head": 1e-5}, {"embedding": 0.5})

    assert [t.relative_error for t in found] == [None, 1e-5, None, None, None]
    assert [t.sensitivity_nats for t in found] == [0.5, None, None, None, None]
