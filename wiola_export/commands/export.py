"""`wiola-export`: write a bundle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from wiola_calibration.corpus import PACKAGED
from wiola_export.errors import OptionError
from wiola_export.options import (
    DATA_FREE,
    DEMOS,
    Budget,
    CalibrationOptions,
    Calibrator,
    ExportOptions,
    Method,
    Quantization,
    Smoothing,
    Source,
)
from wiola_runtime.manifest import Precision, Target

if TYPE_CHECKING:
    from wiola_export.pipeline import Bundle

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
PRECISION_HELP = {
    "fp32": "Keep float32 weights (CPU, portable).",
    "fp16": "Keep float16 weights (CUDA).",
    "int8": "Quantize weights to 8 bits.",
    "int4": "Quantize weights to 4 bits; embedding and head to 8.",
}
RANDOM_TITLE = "RANDOM WEIGHTS"
RANDOM_NOTICE = (
    "No --checkpoint was given: this bundle holds seeded RANDOM weights in the shape of the "
    "variant, with the demo's tokenizer. It measures size and speed on a target. Its text is "
    "noise, and no accuracy is stated for it."
)
FOLDER = click.Path(path_type=Path)

EXPORT_OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--variant"],
        help="120m, 360m, 700m, 1.5b; nano, micro, small; or a packaged checkpoint: "
        f"{', '.join(DEMOS)}.",
    ),
    click.Option(["--checkpoint"], type=FOLDER, help="Folder in the Hugging Face layout."),
    *(
        click.Option([f"--{name}"], is_flag=True, help=PRECISION_HELP[name])
        for name in PRECISIONS
    ),
    click.Option(
        ["--target"], type=click.Choice(get_args(Target)), default="cpu", show_default=True,
        help="Where the bundle will run.",
    ),
    click.Option(
        ["--int8-cache"], is_flag=True,
        help="Keep keys and values in 8 bits: a quarter of their memory (CPU).",
    ),
    click.Option(
        ["--scheme"], type=click.Choice(("weight-only", "dynamic", "static")),
        help="int8: blocks of weights (default), or 8-bit activations too, their range found for "
        "each token or on a text.",
    ),
    click.Option(
        ["--smooth"], metavar="ALPHA|none",
        help="Move the spread of 8-bit activations into the weights, 0 to 1.  [0.75 with a text]",
    ),
    click.Option(
        ["--calibrator"], type=click.Choice(get_args(Calibrator)),
        help="How --scheme static finds ranges.  [percentile]",
    ),
    click.Option(
        ["--block-size"], type=int,
        help="Weights per scale, 16 to 128.  [32; 16 in embedding and head of --int8]",
    ),
    click.Option(["--symmetric"], is_flag=True, help="Leave zero points out."),
    click.Option(
        ["--method"], type=click.Choice(get_args(Method)),
        help="How weights are rounded.  [gptq, or nearest without a text]",
    ),
    click.Option(
        ["--calibration"], metavar="PATH|NAME|none",
        help="Texts to round weights on: .txt, .jsonl, a folder, or a packaged corpus "
        "(austen, kjv).  [both packaged]",
    ),
    click.Option(
        ["--calibration-windows"], type=int, default=CalibrationOptions().windows,
        show_default=True, help="Most windows of 256 tokens to calibrate on.",
    ),
    click.Option(
        ["--bits-per-weight"], type=float,
        help="Give each tensor the bits that cost least, so many on average.",
    ),
    click.Option(
        ["--max-kl"], type=float,
        help="Give tensors bits until the divergence (nats a token) is below; else exit code 3.",
    ),
    click.Option(
        ["--max-ppl-ratio"], type=float, help="The same for the ratio of the perplexities."
    ),
    click.Option(["--plan"], type=FOLDER, help="Store tensors as a plan.json says."),
    click.Option(["--seed"], type=int, default=0, help="Seed of random weights.  [0]"),
    click.Option(["--out"], type=FOLDER, help="Folder to write.  [./wiola-NAME-PRECISION]"),
    click.Option(["--text"], type=FOLDER, help="UTF-8 text to measure on.  [packaged texts]"),
    click.Option(["--no-report"], is_flag=True, help="Do not measure accuracy and speed."),
    click.Option(["--force"], is_flag=True, help="Replace an earlier bundle."),
    click.Option(["--quiet"], is_flag=True, help="Show no progress."),
    click.Option(["--json"], is_flag=True, help="Print the result as JSON."),
]  # fmt: skip


def run_export(choices: Mapping[str, Any]) -> None:
    """Export as the parsed options say, and print what came of it.

    Raises:
        ExportError: Something is wrong with options, checkpoint or output.
    """
    options = parse(choices)
    from wiola_export.console import announce, watching  # noqa: PLC0415  heavy imports wait
    from wiola_export.pipeline import export  # noqa: PLC0415
    from wiola_export.source import find_model  # noqa: PLC0415

    if options.source.is_random:
        find_model(options.source)  # an unknown variant is an error, not a notice
        announce(RANDOM_NOTICE, RANDOM_TITLE)
    with watching(quiet=choices["quiet"] or choices["json"]) as progress:
        bundle = export(options, progress)
    click.echo(as_json(bundle) if choices["json"] else summary(bundle))


def parse(choices: Mapping[str, Any]) -> ExportOptions:
    """Turn parsed options into checked ones.

    Raises:
        OptionError: A choice is missing, doubled, out of range or without effect.
    """
    precision = the_precision(choices)
    return ExportOptions(
        source=Source(
            variant=choices["variant"], checkpoint=choices["checkpoint"], seed=choices["seed"]
        ),
        quantization=Quantization(
            precision=precision,
            scheme=choices["scheme"],
            block_size=choices["block_size"],
            symmetric=choices["symmetric"],
            method=choices["method"],
            smooth=smoothing(choices["smooth"]),
            calibrator=choices["calibrator"],
        ),
        calibration=CalibrationOptions(
            source=calibration_source(choices["calibration"]),
            windows=choices["calibration_windows"],
        ),
        budget=Budget(
            bits_per_weight=choices["bits_per_weight"],
            max_kl=choices["max_kl"],
            max_ppl_ratio=choices["max_ppl_ratio"],
            plan=choices["plan"],
        ),
        target=choices["target"],
        int8_cache=choices["int8_cache"],
        out=choices["out"],
        report=not choices["no_report"],
        text=choices["text"],
        force=choices["force"],
    )


def the_precision(choices: Mapping[str, Any]) -> Precision:
    """Return the one precision that was chosen.

    Raises:
        OptionError: There is none, or there are several.
    """
    chosen = [name for name in PRECISIONS if choices[name]]
    if len(chosen) != 1:
        found = "none" if not chosen else " and ".join(f"--{name}" for name in chosen)
        flags = ", ".join(f"--{name}" for name in PRECISIONS)
        raise OptionError(f"expected exactly one precision of {flags}; found {found}")
    return chosen[0]


def smoothing(given: str | None) -> Smoothing | None:
    """Read a strength, or `none`.

    Raises:
        OptionError: It is neither.
    """
    if given is None or given == "none":
        return None if given is None else "none"
    try:
        return float(given)
    except ValueError as error:
        raise OptionError(f"--smooth is {given}; expected 0 to 1, or none") from error


def calibration_source(given: str | None) -> str | Path | None:
    """Tell names from paths: a name is `none` or a packaged corpus."""
    if given is None or given in (DATA_FREE, *PACKAGED):
        return given
    return Path(given)


def summary(bundle: "Bundle") -> str:
    """Say in a few lines what was written and how to go on."""
    from wiola_export.report.coverage import measure_coverage  # noqa: PLC0415
    from wiola_export.report.figures import size  # noqa: PLC0415
    from wiola_export.report.markdown import verdict  # noqa: PLC0415

    manifest = bundle.manifest
    total = sum(file.size_bytes for file in manifest.files.values())
    weights = "RANDOM" if manifest.weights == "random" else manifest.weights
    facts = (manifest.precision, f"target {manifest.target}", size(total), f"{weights} weights")
    lines = [
        f"{bundle.folder}: {', '.join(facts)}",
        measure_coverage(manifest.quantization).sentence(),
        *(
            [verdict(bundle.report), f"Report: {bundle.folder / 'report.html'}"]
            if bundle.report
            else []
        ),
        f'Try it: wiola-run {bundle.folder} --prompt "It is a truth"',
    ]
    return "\n".join(lines)


def as_json(bundle: "Bundle") -> str:
    """Give the same as one JSON object."""
    from wiola_export.report.report import to_json  # noqa: PLC0415

    manifest = bundle.manifest
    fields = {
        "bundle": str(bundle.folder),
        "name": manifest.name,
        "weights": manifest.weights,
        "precision": manifest.precision,
        "target": manifest.target,
        "size_bytes": sum(file.size_bytes for file in manifest.files.values()),
        "files": {name: file.sha256 for name, file in manifest.files.items()},
        "report": json.loads(to_json(bundle.report)) if bundle.report else None,
    }
    return json.dumps(fields, indent=2, sort_keys=True)
