"""`wiola-export`: results on stdout, progress on stderr, known failures in one line."""

import json
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from support import oracles

from wiola_export import families
from wiola_export.cli import main
from wiola_export.errors import OptionError
from wiola_export.families.gcla.config import GclaConfig
from wiola_export.serialize import DATA_FILE
from wiola_runtime.manifest import FILE_NAME

FAST = ["--no-report", "--quiet"]
TINY = GclaConfig(
    vocab_size=4096, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, dsff_narrow_size=64, dsff_wide_size=128, max_position_embeddings=128,
)  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "demo"
    assert main(["--variant", "demo", "--int8", "--out", str(folder), *FAST]) == 0
    return folder


@pytest.fixture(scope="module")
def random_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "random"
    with mock.patch.dict(families.gcla.VARIANTS, {"tiny": TINY}):
        assert main(["--variant", "tiny", "--int4", "--out", str(folder), "--quiet"]) == 0
    return folder


def refused(capsys, *arguments):
    """Run a command that must fail; return its one line without the program's name."""
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    prefix = "wiola-export: error: "
    assert err.startswith(prefix)
    return err.removeprefix(prefix).rstrip("\n")


WRONG = {
    "expected exactly one precision of --fp32, --fp16, --int8, --int4; found none": "",
    "expected exactly one precision of --fp32, --fp16, --int8, --int4; found --int8 and --int4": (
        "--int8 --int4"
    ),
    "--fp16 needs --target cuda: float16 matrices have no CPU kernel and would be computed in "
    "float32; use --fp32 or --int8 with --target cpu": "--fp16",
    "--fp32 needs --target cpu or portable: attention on CUDA has no float32 kernel; use --fp16 "
    "with --target cuda": "--fp32 --target cuda",
    "--scheme dynamic needs --target cpu, not portable": (
        "--int8 --scheme dynamic --target portable"
    ),
    "--block-size is 48; expected one of 16, 32, 64, 128": "--int4 --block-size 48",
    "--text has no effect with --no-report": "--int8 --no-report --text x.txt",
}


@pytest.mark.parametrize(("message", "flags"), WRONG.items(), ids=WRONG.values())
def test_a_choice_that_cannot_be_is_refused_before_any_work(message, flags, capsys):
    with mock.patch("wiola_export.trace.trace", side_effect=AssertionError("traced")):
        assert refused(capsys, "--variant", "demo", *flags.split()) == message


def test_sources_that_are_no_model_are_refused(capsys, demo, tmp_path):
    assert refused(capsys, "--int8") == (
        "nothing to export; give --checkpoint DIR or --variant NAME"
    )
    assert refused(capsys, "--variant", "demo", "--int8", "--seed", "3") == (
        "--seed has no effect on a trained checkpoint"
    )
    assert "export from the float checkpoint" in refused(capsys, "--checkpoint", demo, "--int4")
    assert refused(capsys, "--checkpoint", tmp_path, "--int4").startswith(
        f"{tmp_path} holds no config.json"
    )


def test_what_cannot_be_written_or_read_is_refused_before_tracing(capsys, demo, tmp_path):
    with mock.patch("wiola_export.trace.trace", side_effect=AssertionError("traced")):
        taken = refused(capsys, "--variant", "demo", "--int8", "--out", demo)
        missing = tmp_path / "missing.txt"
        text = refused(capsys, "--variant", "demo", "--int8", "--text", missing)

    assert taken == f"{demo} already holds a bundle; replace it with --force"
    assert text == f"{missing} not found; give a UTF-8 text file"


def test_usage_errors_are_one_line(capsys):
    assert refused(capsys, "--nonsense").startswith("No such option")
    assert refused(capsys, "inspect").startswith("Missing argument")
    assert refused(capsys, "--int8", "inspect", "x") == (
        "--int8 belongs to an export, not to `inspect`; see `wiola-export inspect --help`"
    )


def test_no_arguments_show_the_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: wiola-export [OPTIONS] [COMMAND]")


def test_debug_shows_where_a_known_failure_came_from():
    with pytest.raises(OptionError):
        main(["--variant", "demo", "--debug"])


def test_an_interrupt_and_a_bug_are_told_apart(demo):
    with mock.patch("wiola_runtime.manifest.Manifest.read", side_effect=KeyboardInterrupt):
        assert main(["inspect", str(demo)]) == 130
    with (
        mock.patch("wiola_runtime.manifest.Manifest.read", side_effect=RuntimeError("a bug")),
        pytest.raises(RuntimeError, match="a bug"),
    ):
        main(["inspect", str(demo)])


def test_help_loads_nothing_heavy():
    probe = (
        "import sys; from wiola_export.cli import main; main(['--help']); "
        "heavy = {'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'rich'} & set(sys.modules); "
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_summary_is_on_stdout_and_progress_on_stderr(tmp_path, capsys):
    code = main(["--variant", "demo", "--int8", "--no-report", "--out", str(tmp_path / "b")])

    out, err = capsys.readouterr()
    assert code == 0
    first, coverage, hint = out.splitlines()
    assert first.startswith(f"{tmp_path / 'b'}: int8, target cpu, ")
    assert first.endswith("trained weights")
    assert coverage == "quantized 43 of 43 matrices; kept float: none"
    assert hint == f'Try it: wiola-run {tmp_path / "b"} --prompt "It is a truth"'
    assert [line.split("] ")[1] for line in err.splitlines()] == [
        "tracing", "lowering for cpu", "writing weights", "recording the self-test",
    ]  # fmt: skip


def test_the_default_folder_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    code = main(["--variant", "demo", "--int4", "--no-report", "--json"])

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["bundle"] == "wiola-demo-int4"
    assert (found["weights"], found["report"]) == ("trained", None)
    assert (tmp_path / "wiola-demo-int4" / FILE_NAME).is_file()


def test_force_replaces_a_bundle(tmp_path, capsys):
    out = ["--out", str(tmp_path / "b"), *FAST]
    assert main(["--variant", "demo", "--int8", *out]) == 0
    assert main(["--variant", "demo", "--int4", "--force", *out]) == 0

    assert json.loads((tmp_path / "b" / FILE_NAME).read_text())["precision"] == "int4"
    capsys.readouterr()


def test_random_weights_are_announced_everywhere(random_bundle, tmp_path, capsys):
    with mock.patch.dict(families.gcla.VARIANTS, {"tiny": TINY}):
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


def test_inspect_shows_the_manifest(demo, capsys):
    assert main(["inspect", str(demo)]) == 0
    text = capsys.readouterr().out
    assert main(["inspect", str(demo), "--json"]) == 0

    assert capsys.readouterr().out == (demo / FILE_NAME).read_text()
    assert "quantized 43 of 43 matrices; kept float: none" in text
    assert "past_key_values.*.key" in text
    assert "shares the bytes of the embedding" in text


def test_verify_accepts_a_good_bundle(demo, capsys):
    assert main(["verify", str(demo)]) == 0
    files, test = capsys.readouterr().out.splitlines()

    assert files == "files: 4 as the manifest says"
    assert test.startswith("self-test: passed on CPUExecutionProvider")


def test_verify_names_a_damaged_file(demo, tmp_path, capsys):
    bundle = shutil.copytree(demo, tmp_path / "b")
    data = bytearray((bundle / DATA_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / DATA_FILE).write_bytes(data)

    assert DATA_FILE in refused(capsys, "verify", bundle)


def test_verify_fails_where_the_machine_computes_something_else(demo, tmp_path, capsys):
    bundle = shutil.copytree(demo, tmp_path / "b")
    manifest = json.loads((bundle / FILE_NAME).read_text())
    manifest["self_test"]["logits"][0]["values"][0] += 5
    (bundle / FILE_NAME).write_text(json.dumps(manifest))

    code = main(["verify", str(bundle)])

    assert code == 2
    assert "is off by 5" in capsys.readouterr().err


def test_report_measures_a_bundle_again(demo, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("It is a truth universally acknowledged, that a man must want a wife.\n" * 40)

    assert main(["report", str(demo), "--text", str(text), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["report", str(demo), "--text", str(text), "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    again = json.loads((tmp_path / "r" / "report.json").read_text())

    assert 0 < found["kl_nats"]["mean"] < 1e-2
    assert np.isclose(found["ppl_ratio"], found["candidate"]["ppl"] / found["reference"]["ppl"])
    assert {k: v for k, v in found.items() if k != "speed"} == {
        k: v for k, v in again.items() if k != "speed"
    }
    assert (tmp_path / "r" / "report.md").is_file()
    assert refused(capsys, "report", demo, "--out", tmp_path / "r").endswith("name a new folder")


def test_report_refuses_another_checkpoint(demo, tmp_path, capsys):
    other = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "other")

    assert "was made from checkpoint" in refused(capsys, "report", demo, "--checkpoint", other)


def test_random_bundles_have_no_accuracy_to_report(random_bundle, capsys):
    message = refused(capsys, "report", random_bundle, "--text", "x.txt")
    assert message.startswith(f"{random_bundle} has random weights, which have no accuracy")

    assert main(["report", str(random_bundle), "--quiet"]) == 0
    assert "Random weights: no accuracy can be stated" in capsys.readouterr().out
