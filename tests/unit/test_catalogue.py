"""What a model takes is told before it is exported, and is what the bundle then takes."""

import json

import pytest
from support import oracles

from wiola_export import cli
from wiola_export.catalogue import entries, weight_bytes
from wiola_export.families import FAMILIES
from wiola_export.options import Quantization, Source
from wiola_export.source import find_model


def by_name():
    return {one.variant: one for one in entries()}


def test_every_variant_of_every_family_is_listed():
    assert {(one.family, one.variant) for one in entries()} == {
        (family.name, variant) for family in FAMILIES for variant in family.variants
    }


@pytest.mark.parametrize(
    ("variant", "parameters"), [("120m", 147_297_804), ("1.5b", 2_179_698_716)]
)
def test_parameters_are_those_that_the_package_builds(variant, parameters):
    assert by_name()[variant].parameters == parameters


def test_a_full_context_of_360m_takes_what_its_paper_says():
    """Keys and values of 16 layers, 4 heads of 64, 2,048 tokens: 67 MB, as float32."""
    one = by_name()["360m"]

    assert one.cache_bytes == 2 * 16 * 4 * 64 * 2048 * 4 == 67_108_864
    assert one.sum_bytes == 15 * 1024 * 4


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_the_weights_of_a_bundle_take_what_was_reckoned(precision, tmp_path):
    """But for tables of rotations, and context projections that layer 0 never reads."""
    quantization = Quantization(precision=precision, method="nearest")
    oracles.demo_bundle(tmp_path / "demo", quantization)
    config = find_model(Source(variant="demo")).config

    reckoned = weight_bytes(config, precision)

    written = sum(path.stat().st_size for path in (tmp_path / "demo").glob("model.onnx.*"))
    assert reckoned == pytest.approx(written, rel=0.06)


def test_the_list_is_a_table_or_json(capsys):
    assert cli.main(["--list"]) == 0
    table = capsys.readouterr().out
    assert cli.main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)

    assert all(f"│ {name} " in table for name in by_name())
    assert [model["variant"] for model in listed["models"]] == list(by_name())
    assert "demo" in listed["packaged"]
    assert all(name in table for name in listed["packaged"])


@pytest.mark.parametrize(
    ("arguments", "others"),
    [(["--list", "--int8"], "--int8"), (["--list", "inspect", "bundle"], "inspect")],
)
def test_the_list_stands_alone(arguments, others, capsys):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == (
        f"wiola-export: error: --list stands alone or with --json; drop {others}\n"
    )
