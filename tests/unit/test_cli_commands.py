"""`wiola-export inspect`, `verify` and `report`, on trained and on random weights."""

import json
import re
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from support import oracles, process
from support.command_line import refused

from wiola_export import families
from wiola_export.cli import main
from wiola_export.families.gcla.config import GclaConfig
from wiola_export.serialize import DATA_FILE
from wiola_runtime.manifest import FILE_NAME

TINY = GclaConfig(
    vocab_size=4096, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, dsff_narrow_size=64, dsff_wide_size=128, max_position_embeddings=128,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _trace_once(monkeypatch):
    monkeypatch.setattr("wiola_export.trace.trace", oracles.shared_trace)


@pytest.fixture(autouse=True)
def _tiny_variant(monkeypatch):
    monkeypatch.setitem(families.gcla.VARIANTS, "tiny", TINY)


@pytest.fixture(scope="module")
def random_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "random"
    with mock.patch.dict(families.gcla.VARIANTS, {"tiny": TINY}):
        assert main(["--variant", "tiny", "--int4", "--out", str(folder), "--quiet"]) == 0
    return folder


def test_inspect_shows_the_manifest(demo_int8, capsys):
    assert main(["inspect", str(demo_int8)]) == 0
    text = capsys.readouterr().out
    assert main(["inspect", str(demo_int8), "--json"]) == 0

    assert capsys.readouterr().out == (demo_int8 / FILE_NAME).read_text()
    assert "quantized 43 of 43 matrices; kept float: none" in text
    assert "past_key_values.*.key" in text
    assert "shares the bytes of the embedding" in text


def test_inspect_says_what_takes_how_much(demo_int8, capsys):
    assert main(["inspect", str(demo_int8)]) == 0

    out = capsys.readouterr().out
    assert re.search(r"feed-forward +3\.2 MiB", out)
    assert "9.46 bits per weight of the matrices" in out


def test_inspect_needs_no_onnxruntime(demo_int8):
    probe = (
        "import sys; from wiola_export.cli import main; main(['inspect', sys.argv[1]]); "
        "sys.exit(' '.join({'torch', 'onnxruntime'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, demo_int8], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_console_without_the_characters_shows_substitutes(demo_int8):
    done = process.run("inspect", demo_int8, PYTHONIOENCODING="cp437")

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"4096 ? 192" in done.stdout


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_leaves_is_no_failure(demo_int8, options):
    """As in `wiola-export inspect BUNDLE | head -c 1`."""
    command = [*process.COMMAND, "inspect", demo_int8, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        writer.stdout.close()
        errors = writer.stderr.read()

    assert (writer.wait(), errors) == (0, b"")


def test_verify_accepts_a_good_bundle(demo_int8, capsys):
    assert main(["verify", str(demo_int8)]) == 0
    files, test = capsys.readouterr().out.splitlines()

    assert files == "files: 5 as the manifest says"
    assert test.startswith("self-test: passed on CPUExecutionProvider")


def test_verify_names_a_damaged_file(demo_int8, tmp_path, capsys):
    bundle = shutil.copytree(demo_int8, tmp_path / "b")
    data = bytearray((bundle / DATA_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / DATA_FILE).write_bytes(data)

    assert DATA_FILE in refused(capsys, "verify", bundle)
    assert DATA_FILE in refused(capsys, "report", bundle)


def test_verify_fails_where_the_machine_computes_something_else(demo_int8, tmp_path, capsys):
    bundle = shutil.copytree(demo_int8, tmp_path / "b")
    manifest = json.loads((bundle / FILE_NAME).read_text())
    manifest["self_test"]["logits"][0]["values"][0] += 5
    (bundle / FILE_NAME).write_text(json.dumps(manifest))

    code = main(["verify", str(bundle)])

    assert code == 2
    assert "the bundle says" in capsys.readouterr().err


def test_report_measures_a_bundle_again(demo_int8, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("It is a truth universally acknowledged, that a man must want a wife.\n" * 40)

    assert main(["report", str(demo_int8), "--text", str(text), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["report", str(demo_int8), "--text", str(text), "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    again = json.loads((tmp_path / "r" / "report.json").read_text())

    assert 0 < found["kl_nats"]["mean"] < 1e-2
    assert np.isclose(found["ppl_ratio"], found["candidate"]["ppl"] / found["reference"]["ppl"])
    assert {k: v for k, v in found.items() if k != "speed"} == {
        k: v for k, v in again.items() if k != "speed"
    }
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "report.html", "report.json", "report.md",
    }  # fmt: skip
    assert found["ladder"]["rungs"][2]["name"] == "graph"
    assert all(tensor["relative_error"] < 1e-3 for tensor in found["tensors"])


def test_report_compares_any_number_of_bundles(demo_int8, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("It is a truth universally acknowledged, that a man must want a wife.\n" * 40)
    other = shutil.copytree(demo_int8, tmp_path / "other")
    measured = ["--text", str(text), "--quiet"]

    assert main(["report", str(demo_int8), str(other), *measured, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["reports"]

    assert [report["name"] for report in found] == [demo_int8.name, "other"]
    figures = [{k: v for k, v in r.items() if k not in ("name", "speed")} for r in found]
    assert figures[0] == figures[1]


def test_a_short_text_gets_a_verdict_that_says_so(demo_int8, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("It is a truth universally acknowledged, that a man must want a wife.\n" * 40)

    assert main(["report", str(demo_int8), "--text", str(text), "--quiet"]) == 0

    verdict = capsys.readouterr().out.splitlines()[2]
    assert "too little text to show a difference: give at least 2,048 tokens" in verdict


def test_report_refuses_random_weights_beside_trained_ones(demo_int8, random_bundle, capsys):
    assert refused(capsys, "report", demo_int8, random_bundle) == (
        f"{random_bundle} has random weights and others have not; "
        "report on those with trained weights by themselves"
    )


def test_report_refuses_a_folder_before_it_measures(demo_int8, tmp_path, capsys):
    taken, new = tmp_path / "taken", tmp_path / "new"
    taken.mkdir()

    assert refused(capsys, "report", demo_int8, "--out", taken) == (
        f"--out {taken} exists already; name a new folder"
    )
    assert refused(capsys, "report", demo_int8, "--out", new, "--json") == (
        "--json has no effect with --out, which writes every form"
    )
    assert not new.exists()


def test_report_refuses_another_checkpoint(demo_int8, tmp_path, capsys):
    other = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "other")

    assert "was made from checkpoint" in refused(capsys, "report", demo_int8, "--checkpoint", other)


def test_random_bundles_have_no_accuracy_to_report(random_bundle, capsys):
    message = refused(capsys, "report", random_bundle, "--text", "x.txt")
    assert message.startswith(f"{random_bundle} has random weights, which have no accuracy")

    assert main(["report", str(random_bundle), "--quiet"]) == 0
    assert "Random weights: no accuracy can be stated" in capsys.readouterr().out


def test_random_weights_are_announced_everywhere(random_bundle, tmp_path, capsys):
    main(["--variant", "tiny", "--int4", "--out", str(tmp_path / "b"), "--no-report", "--json"])
    out, err = capsys.readouterr()
    manifest = json.loads((random_bundle / FILE_NAME).read_text())
    report = json.loads((random_bundle / "report.json").read_text())

    assert "RANDOM WEIGHTS" in err
    assert json.loads(out)["weights"] == "random"
    assert (manifest["weights"], manifest["source"]["seed"]) == ("random", 0)
    assert report["weights"] == "random"
    assert report["candidate"]["ppl"] is report["kl_nats"]["mean"] is None
    assert report["speed"]["decode_tokens_per_second"] > 0
    assert "random" in (random_bundle / "README.md").read_text().splitlines()[0].lower()
