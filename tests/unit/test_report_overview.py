"""Several bundles side by side say of each what its own report says."""

import json

import pytest
from support.manifests import ACCURACY, MACHINE, SPEED, manifest, random_manifest

from wiola_export.report import make_report, to_json
from wiola_export.report.files import write_report, write_reports
from wiola_export.report.markdown import to_markdown, to_markdown_all
from wiola_export.report.overview import overview, to_json_all, unique_names


def report_on(spec, accuracy=ACCURACY, speed=SPEED):
    return make_report(spec, accuracy=accuracy, speed=speed, machine=MACHINE)


REPORTS = {
    "first": report_on(manifest()),
    "second": report_on(manifest(name="other", precision="int4"), speed=None),
}


def test_every_bundle_has_a_row():
    rows = overview(REPORTS).rows

    assert [row[0] for row in rows] == ["`first`", "`second`"]
    assert rows[0][2:] == (
        *("1.4 MiB", "8.39", "1.0007", "0.9998 to 1.0016", "2.41e-04", "98.71 %"),
        *("4,950", "1,390", "88.0 MiB"),
    )
    assert rows[1][-3:] == ("–", "–", "–")


def test_random_weights_have_a_size_and_a_speed_only():
    (row,) = overview({"r": report_on(random_manifest(), accuracy=None)}).rows

    assert row[4:8] == ("–",) * 4
    assert row[8] == "4,950"


def test_the_markdown_holds_each_report_one_level_down():
    text = to_markdown_all(REPORTS)

    assert text.startswith("# 2 bundles of one checkpoint\n\n| bundle |")
    for name, report in REPORTS.items():
        body = to_markdown(report).partition("\n\n")[2].replace("\n## ", "\n### ")
        assert f"\n## {name}\n\n{body.strip()}\n" in text


def test_the_json_holds_each_report_as_it_is_written_alone():
    figures = json.loads(to_json_all(REPORTS))

    assert [report.pop("name") for report in figures["reports"]] == ["first", "second"]
    assert figures["reports"] == [json.loads(to_json(report)) for report in REPORTS.values()]
    assert figures["schema_version"] == 2
    assert to_json_all(REPORTS) == to_json_all(dict(REPORTS))


@pytest.mark.parametrize("several", [False, True])
def test_three_files_are_written(tmp_path, several):
    if several:
        write_reports(REPORTS, tmp_path)
    else:
        write_report(REPORTS["first"], tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {
        "report.json", "report.md", "report.html",
    }  # fmt: skip
    assert b"\r" not in (tmp_path / "report.md").read_bytes()


def test_names_that_occur_again_are_numbered():
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a #2", "a #3"]
