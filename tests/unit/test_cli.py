"""`wiola-export`: results on stdout, progress on stderr, known failures in one line."""

import json
import os
import subprocess
import sys
from unittest import mock

import pytest
from support import oracles
from support.command_line import refused

from wiola_export.cli import main
from wiola_export.errors import OptionError
from wiola_export.families import variant_names
from wiola_export.options import DEMOS
from wiola_runtime.errors import BundleError
from wiola_runtime.manifest import FILE_NAME

DATA_FREE = ("--calibration", "none")


@pytest.fixture(autouse=True)
def _trace_once(monkeypatch):
    monkeypatch.setattr("wiola_export.trace.trace", oracles.shared_trace)


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


def test_sources_that_are_no_model_are_refused(capsys, demo_int8, tmp_path):
    assert refused(capsys, "--int8") == (
        "nothing to export; give --checkpoint DIR or --variant NAME"
    )
    assert refused(capsys, "--variant", "demo", "--int8", "--seed", "3") == (
        "--seed has no effect on a trained checkpoint"
    )
    assert "export from the float checkpoint" in refused(
        capsys, "--checkpoint", demo_int8, "--int4"
    )
    assert refused(capsys, "--checkpoint", tmp_path, "--int4").startswith(
        f"{tmp_path} holds no config.json"
    )


def test_what_cannot_be_written_or_read_is_refused_before_tracing(capsys, demo_int8, tmp_path):
    with mock.patch("wiola_export.trace.trace", side_effect=AssertionError("traced")):
        taken = refused(capsys, "--variant", "demo", "--int8", "--out", demo_int8)
        missing = tmp_path / "missing.txt"
        text = refused(capsys, "--variant", "demo", "--int8", "--text", missing)

    assert taken == f"{demo_int8} already holds a bundle; replace it with --force"
    assert text == f"{missing} not found; give a UTF-8 text file"


def test_usage_errors_are_one_line(capsys):
    assert refused(capsys, "--nonsense").startswith("No such option")
    assert refused(capsys, "inspect") == (
        "Missing argument 'BUNDLE'. See `wiola-export inspect --help`."
    )
    assert refused(capsys, "--int8", "inspect", "x") == (
        "--int8 belongs to an export, not to `inspect`; see `wiola-export inspect --help`"
    )


def test_no_arguments_show_the_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: wiola-export [OPTIONS] [COMMAND]")


def test_debug_shows_where_a_known_failure_came_from():
    with pytest.raises(OptionError):
        main(["--variant", "demo", "--debug"])
    with pytest.raises(BundleError):
        main(["--debug", "inspect", "nowhere"])


def test_an_interrupt_and_a_bug_are_told_apart(demo_int8):
    with mock.patch("wiola_runtime.manifest.Manifest.read", side_effect=KeyboardInterrupt):
        assert main(["inspect", str(demo_int8)]) == 130
    with (
        mock.patch("wiola_runtime.manifest.Manifest.read", side_effect=RuntimeError("a bug")),
        pytest.raises(RuntimeError, match="a bug"),
    ):
        main(["inspect", str(demo_int8)])


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


def test_the_summary_is_on_stdout_and_progress_on_stderr(demo_export, demo_int8):
    out, err = demo_export.stdout.decode(), demo_export.stderr.decode()

    assert demo_export.returncode == 0
    first, coverage, hint = out.splitlines()
    assert first.startswith(f"{demo_int8}: int8, target cpu, ")
    assert first.endswith("trained weights")
    assert coverage == "quantized 43 of 43 matrices; kept float: none"
    assert hint == f'Try it: wiola-run {demo_int8} --prompt "It is a truth"'
    assert [line.split("] ")[1] for line in err.splitlines()] == [
        "tracing", "lowering for cpu", "writing weights", "recording the self-test",
    ]  # fmt: skip


def test_an_unknown_variant_is_an_error_without_a_notice(capsys):
    known = ", ".join((*variant_names(), *DEMOS))
    assert refused(capsys, "--variant", "999m", "--int8") == (
        f"unknown variant '999m'; expected one of {known}"
    )


def test_the_default_folder_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    code = main(["--variant", "demo", "--int4", *DATA_FREE, "--no-report", "--json"])

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["bundle"] == "wiola-demo-int4"
    assert (found["weights"], found["report"]) == ("trained", None)
    assert (tmp_path / "wiola-demo-int4" / FILE_NAME).is_file()


def test_force_replaces_a_bundle(tmp_path, capsys):
    out = ["--out", str(tmp_path / "b"), "--no-report", "--quiet"]
    assert main(["--variant", "demo", "--int8", *DATA_FREE, *out]) == 0
    assert main(["--variant", "demo", "--int4", "--force", *DATA_FREE, *out]) == 0

    assert json.loads((tmp_path / "b" / FILE_NAME).read_text())["precision"] == "int4"
    capsys.readouterr()


@pytest.mark.parametrize(("given", "kept"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_told_otherwise(given, kept, monkeypatch, capsys):
    """So that calibration does not crawl beside other work."""
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")

    assert main(["--version"]) == 0

    assert os.environ["OMP_WAIT_POLICY"] == kept
    assert capsys.readouterr().out
