"""The results of a study: sorted, marked, complete, and the same each time."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st
from support.studies import make_outcome

from wiola_export.study.results import Results, to_json, to_markdown, write_results
from wiola_export.study.task import Outcome, Speed

FAILED = Outcome(name="mixed-4.6", choices={}, figures=None, error="it needs | 4.7 bits")
OUTCOMES = (
    make_outcome("int4-awq-32", size_bytes=3_900_000, kl_nats=0.02),
    make_outcome("int4-gptq-32", size_bytes=3_900_000, kl_nats=0.01),
    make_outcome("int8-gptq-32", size_bytes=5_400_000, kl_nats=0.0004),
    make_outcome("int8-gptq-64", size_bytes=5_500_000, kl_nats=0.0005),
    FAILED,
)
RESULTS = Results(checkpoint_sha256="ab" * 32, outcomes=OUTCOMES)


def rows(markdown):
    return re.findall(r"^\| `(.*?)` \| (✓?) \|", markdown, re.MULTILINE)


def test_the_table_is_sorted_by_size_and_marks_the_frontier():
    assert rows(to_markdown(RESULTS)) == [
        ("int4-gptq-32", "✓"), ("int4-awq-32", ""), ("int8-gptq-32", "✓"), ("int8-gptq-64", ""),
    ]  # fmt: skip


def test_a_row_has_the_figures_as_people_read_them():
    line = to_markdown(RESULTS).splitlines()[6]

    assert line == (
        "| `int4-gptq-32` | ✓ | 3.7 MiB | 8.62 | 1.00e-02 | 5.00e-03 to 2.00e-02 | 97.51 % "
        "| 1.0012 | 412 |"
    )


def test_a_failure_is_told_below_the_table():
    assert to_markdown(RESULTS).endswith(
        "\n\n## Without figures\n\n- `mixed-4.6`: it needs / 4.7 bits\n"
    )


def test_json_has_an_entry_for_every_cell_in_the_order_of_names():
    study = json.loads(to_json(RESULTS))

    assert study["schema_version"] == 1
    assert study["checkpoint_sha256"] == "ab" * 32
    assert [cell["name"] for cell in study["cells"]] == sorted(one.name for one in OUTCOMES)
    assert [cell["name"] for cell in study["cells"] if cell["frontier"]] == [
        "int4-gptq-32", "int8-gptq-32",
    ]  # fmt: skip


def test_every_entry_has_the_same_keys():
    cells = json.loads(to_json(RESULTS))["cells"]

    assert len({tuple(cell) for cell in cells}) == 1
    failed = cells[-1]
    assert (failed["error"], failed["kl_nats"], failed["speed"]) == (FAILED.error, None, None)


def test_only_speed_differs_between_two_runs():
    def without_speed(results):
        study = json.loads(to_json(results))
        return [{k: v for k, v in cell.items() if k != "speed"} for cell in study["cells"]]

    faster = Speed(prompt_tokens_per_second=1.0, reply_tokens_per_second=2.0)
    again = tuple(
        one if one.figures is None
        else dataclasses.replace(one, figures=dataclasses.replace(one.figures, speed=faster))
        for one in OUTCOMES
    )  # fmt: skip

    assert without_speed(dataclasses.replace(RESULTS, outcomes=again)) == without_speed(RESULTS)
    assert to_json(dataclasses.replace(RESULTS, outcomes=again)) != to_json(RESULTS)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8))
def test_no_cell_of_the_frontier_is_beaten(places):
    outcomes = tuple(
        make_outcome(f"cell-{number}", size_bytes=size, kl_nats=nats / 100)
        for number, (size, nats) in enumerate(places)
    )

    frontier = Results(checkpoint_sha256="", outcomes=outcomes).frontier

    assert frontier
    for number, (size, nats) in enumerate(places):
        beaten = any(s <= size and n <= nats and (s, n) != (size, nats) for s, n in places)
        assert not (beaten and f"cell-{number}" in frontier)


def test_the_picture_names_the_frontier_only_and_stands_alone(tmp_path):
    write_results(RESULTS, tmp_path)

    svg = (tmp_path / "frontier.svg").read_text("utf-8")
    ET.fromstring(svg)
    assert ">int8-gptq-32<" in svg
    assert ">int8-gptq-64<" not in svg
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", svg))
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", svg))


def test_nothing_measured_yet_is_no_picture(tmp_path):
    write_results(dataclasses.replace(RESULTS, outcomes=(FAILED,)), tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.json", "study.md"]
    assert "best of its size" not in (tmp_path / "study.md").read_text("utf-8")
