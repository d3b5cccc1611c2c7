"""What is typed becomes one checked description of the export, or one line that says why not."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from wiola_export.cli import NAME, app, main
from wiola_export.commands.export import parse
from wiola_export.options import ExportOptions, Quantization, Source

PRECISIONS = ("fp32", "fp16", "int8", "int4")
TARGETS = ("cpu", "cuda", "portable")
REFUSED = {
    ("fp16", "cpu"): (
        "--fp16 needs --target cuda: float16 matrices have no CPU kernel and would be computed "
        "in float32; use --fp32 or --int8 with --target cpu"
    ),
    ("fp16", "portable"): (
        "--fp16 needs --target cuda: float16 matrices have no CPU kernel and would be computed "
        "in float32; use --fp32 or --int8 with --target portable"
    ),
    ("fp32", "cuda"): (
        "--fp32 needs --target cpu or portable: attention on CUDA has no float32 kernel; "
        "use --fp16 with --target cuda"
    ),
}
ALLOWED = sorted(set(itertools.product(PRECISIONS, TARGETS)) - REFUSED.keys())


def described(*arguments):
    """Parse a command line into the export that it describes, without exporting."""
    return parse(app.make_context(NAME, list(arguments)).params)


def refused(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    return err


@pytest.mark.parametrize(("precision", "target"), ALLOWED)
def test_a_precision_and_a_target_that_go_together(precision, target):
    options = described("--variant", "demo", f"--{precision}", "--target", target)

    assert (options.quantization.precision, options.target) == (precision, target)


@pytest.mark.parametrize(("precision", "target"), REFUSED)
def test_a_precision_that_a_target_cannot_compute(precision, target, capsys):
    err = refused(capsys, "--variant", "demo", f"--{precision}", "--target", target)

    assert err == f"wiola-export: error: {REFUSED[precision, target]}\n"


def test_every_default_is_that_of_the_options():
    assert described("--variant", "demo", "--int8") == ExportOptions(
        source=Source(variant="demo"), quantization=Quantization(precision="int8")
    )


def test_every_option_arrives():
    of_random_weights = described(
        "--variant", "120m", "--seed", "7", "--int4", "--scheme", "weight-only",
        "--block-size", "128", "--symmetric", "--target", "portable", "--out", "b",
        "--no-report", "--force",
    )  # fmt: skip
    of_a_checkpoint = described("--checkpoint", "dir", "--int8", "--text", "novel.txt")

    assert of_random_weights == ExportOptions(
        source=Source(variant="120m", seed=7),
        quantization=Quantization(
            precision="int4", scheme="weight-only", block_size=128, symmetric=True
        ),
        target="portable",
        out=Path("b"),
        report=False,
        force=True,
    )
    assert of_a_checkpoint == ExportOptions(
        source=Source(checkpoint=Path("dir")),
        quantization=Quantization(precision="int8"),
        text=Path("novel.txt"),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--int8", "--target", "tpu"],
            "Invalid value for '--target': 'tpu' is not one of 'cpu', 'cuda', 'portable'.",
        ),
        (
            ["--int8", "--scheme", "float"],
            (
                "Invalid value for '--scheme': 'float' is not one of 'weight-only', 'dynamic', "
                "'static'."
            ),
        ),
        (
            ["--int4", "--block-size", "big"],
            "Invalid value for '--block-size': 'big' is not a valid integer.",
        ),
        (["--int8", "--out"], "Option '--out' requires an argument."),
        (["convert"], "No such command 'convert'."),
    ],
)
def test_a_value_that_is_none_is_one_line_with_the_way_out(arguments, message, capsys):
    assert refused(capsys, *arguments) == (
        f"wiola-export: error: {message} See `wiola-export --help`.\n"
    )


def test_a_subcommand_points_to_its_own_help(capsys):
    assert refused(capsys, "verify", "b", "--device", "tpu") == (
        "wiola-export: error: Invalid value for '--device': 'tpu' is not one of 'cpu', 'cuda', "
        "'auto'. See `wiola-export verify --help`.\n"
    )


def test_options_of_an_export_are_no_options_of_a_subcommand(capsys):
    assert refused(capsys, "--variant", "demo", "--force", "--json", "verify", "b") == (
        "wiola-export: error: --variant, --force, --json belongs to an export, not to `verify`; "
        "see `wiola-export verify --help`\n"
    )


@pytest.mark.parametrize(
    "lines",
    [
        [["--help"], ["inspect", "--help"], ["verify", "--help"], ["report", "-h"], []],
        [["--version"], ["--nonsense"], ["report"], ["--variant", "demo"], ["--fp16"]],
    ],
    ids=["helps", "refusals"],
)
def test_an_answer_that_needs_no_model_loads_nothing_heavy(lines):
    probe = (
        "import sys; from wiola_export.cli import main\n"
        f"for line in {lines}: main(line)\n"
        "heavy = {'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'rich', 'safetensors'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
