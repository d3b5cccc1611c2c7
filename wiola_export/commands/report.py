"""`wiola-export report`: measure bundles against their checkpoint."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wiola_export.errors import EvaluationError, OptionError

if TYPE_CHECKING:
    from wiola_export.comparison import Exported
    from wiola_export.report.report import Report
    from wiola_export.source import Model

FOLDER = click.Path(path_type=Path)


@click.command(short_help="Measure BUNDLEs against their checkpoint.")
@click.argument("bundles", type=FOLDER, nargs=-1, required=True, metavar="BUNDLE...")
@click.option("--checkpoint", type=FOLDER, help="Their checkpoint.  [demo: packaged]")
@click.option("--text", type=FOLDER, help="UTF-8 text to measure on.  [packaged texts]")
@click.option("--out", type=FOLDER, help="Folder for report.html, .md and .json.  [stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, not Markdown.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def report(
    bundles: tuple[Path, ...],
    checkpoint: Path | None,
    text: Path | None,
    out: Path | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure accuracy, size, speed and memory of BUNDLEs of one checkpoint on one text.

    Several bundles are compared with each other. Random weights have no accuracy.
    """
    from wiola_export.output import output_folder  # noqa: PLC0415  heavy imports wait

    if out is not None:
        require_new(out, as_json=as_json)
    found = measure_again(bundles, checkpoint, text, quiet=quiet)
    if out is None:
        click.echo(to_text(found, as_json=as_json), nl=False)
        return
    with output_folder(out, force=False, needed_bytes=0) as folder:
        write(found, folder)
    click.echo(str(out))


def require_new(out: Path, *, as_json: bool) -> None:
    """Refuse a folder that cannot be written, before minutes are spent on measuring.

    Raises:
        OptionError: The folder exists, or one form was asked for and all would be written.
        OutputError: The place is unusable.
    """
    from wiola_export.output import check_target  # noqa: PLC0415

    if as_json:
        raise OptionError("--json has no effect with --out, which writes every form")
    if out.exists():
        raise OptionError(f"--out {out} exists already; name a new folder")
    check_target(out, force=False)


def measure_again(
    folders: Sequence[Path], checkpoint: Path | None, text: Path | None, *, quiet: bool
) -> "dict[str, Report]":
    """Check the files of bundles and measure them as an export does, by the folders' names.

    Raises:
        ExportError: Bundles, checkpoint and text do not go together.
        WiolaRuntimeError: A bundle is damaged, or the text cannot be measured on.
    """
    from wiola_export.console import watching  # noqa: PLC0415
    from wiola_export.float_graph import build_float_graph  # noqa: PLC0415
    from wiola_export.measure import measure_all, texts_to_measure  # noqa: PLC0415
    from wiola_export.pipeline import build_graph, describe_on_disk  # noqa: PLC0415
    from wiola_export.report.overview import unique_names  # noqa: PLC0415

    bundles = [open_bundle(folder) for folder in folders]
    model = find_source(bundles, checkpoint, text)
    texts = texts_to_measure(text)
    float_graph = None
    if model is not None:
        float_graph = functools.partial(
            build_float_graph, model, build=build_graph, describe=describe_on_disk
        )
    with watching(quiet=quiet) as progress:
        reports = measure_all(bundles, model, texts, progress, float_graph=float_graph)
    names = unique_names([folder.resolve().name for folder in folders])
    return dict(zip(names, reports, strict=True))


def open_bundle(folder: Path) -> "Exported":
    """Read the manifest of a bundle and check all its files.

    Raises:
        BundleError: It is no bundle, or it is damaged.
    """
    from wiola_export.comparison import Exported  # noqa: PLC0415
    from wiola_runtime.manifest import Manifest  # noqa: PLC0415
    from wiola_runtime.verify import require_files, verify_files  # noqa: PLC0415

    manifest = Manifest.read(folder)
    require_files(folder, manifest)
    verify_files(folder, manifest)
    return Exported(folder=folder, manifest=manifest)


def find_source(
    bundles: "Sequence[Exported]", checkpoint: Path | None, text: Path | None
) -> "Model | None":
    """Open the checkpoint that all bundles were made from; None for random weights.

    Raises:
        OptionError: No checkpoint was named, or one where none can be.
        EvaluationError: The checkpoint is another one.
    """
    random = [bundle for bundle in bundles if bundle.manifest.weights == "random"]
    if random and (checkpoint is not None or text is not None):
        raise OptionError(
            f"{random[0].folder} has random weights, which have no accuracy; "
            "drop --checkpoint and --text to measure size and speed"
        )
    if random and len(random) < len(bundles):
        raise OptionError(
            f"{random[0].folder} has random weights and others have not; "
            "report on those with trained weights by themselves"
        )
    return None if random else _checkpoint(bundles, checkpoint)


def _checkpoint(bundles: "Sequence[Exported]", checkpoint: Path | None) -> "Model":
    from wiola_export.options import DEMOS, Source  # noqa: PLC0415
    from wiola_export.source import find_model  # noqa: PLC0415

    unknown = [bundle.folder for bundle in bundles if bundle.manifest.variant not in DEMOS]
    if checkpoint is None and unknown:
        raise OptionError(f"give --checkpoint DIR, the checkpoint that {unknown[0]} was made from")
    demo = bundles[0].manifest.variant
    source = Source(variant=demo) if checkpoint is None else Source(checkpoint=checkpoint)
    model = find_model(source)
    assert model.checkpoint is not None
    found = model.checkpoint.sha256()
    for bundle in bundles:
        wanted = str(bundle.manifest.source.checkpoint_sha256)
        if found != wanted:
            raise EvaluationError(
                f"{bundle.folder} was made from checkpoint {wanted[:12]}…, but "
                f"{model.checkpoint.folder} is {found[:12]}…; give the one that it was made from"
            )
    return model


def to_text(reports: "Mapping[str, Report]", *, as_json: bool) -> str:
    """Write reports as Markdown or JSON; one by itself as an export writes it."""
    from wiola_export.report.markdown import to_markdown, to_markdown_all  # noqa: PLC0415
    from wiola_export.report.overview import to_json_all  # noqa: PLC0415
    from wiola_export.report.report import to_json  # noqa: PLC0415

    if len(reports) > 1:
        return to_json_all(reports) if as_json else to_markdown_all(reports)
    (only,) = reports.values()
    return to_json(only) if as_json else to_markdown(only)


def write(reports: "Mapping[str, Report]", folder: Path) -> None:
    """Write reports in every form; one by itself as an export writes it."""
    from wiola_export.report.files import write_report, write_reports  # noqa: PLC0415

    if len(reports) > 1:
        write_reports(reports, folder)
    else:
        (only,) = reports.values()
        write_report(only, folder)
