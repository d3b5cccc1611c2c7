"""`wiola-export report`: measure a bundle against its checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from wiola_export.errors import EvaluationError, OptionError

if TYPE_CHECKING:
    from wiola_export.report.report import Report
    from wiola_export.source import Model
    from wiola_runtime.manifest import Manifest

FOLDER = click.Path(path_type=Path)


@click.command(short_help="Measure BUNDLE against its checkpoint.")
@click.argument("bundle", type=FOLDER)
@click.option("--checkpoint", type=FOLDER, help="The checkpoint of BUNDLE.  [demo: packaged]")
@click.option("--text", type=FOLDER, help="UTF-8 text to measure on.  [packaged texts]")
@click.option("--out", type=FOLDER, help="Folder for report.json and report.md.  [stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, not Markdown.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def report(
    bundle: Path,
    checkpoint: Path | None,
    text: Path | None,
    out: Path | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure accuracy, size, speed and memory of BUNDLE; random weights have no accuracy."""
    from wiola_export.output import output_folder  # noqa: PLC0415  heavy imports wait
    from wiola_export.report.files import write_report  # noqa: PLC0415
    from wiola_export.report.markdown import to_markdown  # noqa: PLC0415
    from wiola_export.report.report import to_json  # noqa: PLC0415

    if out is not None:
        require_new(out, as_json=as_json)
    found = measure_again(bundle, checkpoint, text, quiet=quiet)
    if out is None:
        click.echo(to_json(found) if as_json else to_markdown(found), nl=False)
        return
    with output_folder(out, force=False, needed_bytes=0) as folder:
        write_report(found, folder)
    click.echo(str(out))


def require_new(out: Path, *, as_json: bool) -> None:
    """Refuse a folder that cannot be written, before minutes are spent on measuring.

    Raises:
        OptionError: The folder exists, or one form was asked for and both would be written.
        OutputError: The place is unusable.
    """
    from wiola_export.output import check_target  # noqa: PLC0415

    if as_json:
        raise OptionError("--json has no effect with --out, which writes both forms")
    if out.exists():
        raise OptionError(f"--out {out} exists already; name a new folder")
    check_target(out, force=False)


def measure_again(
    bundle: Path, checkpoint: Path | None, text: Path | None, *, quiet: bool
) -> "Report":
    """Check the files of a bundle and measure it as an export does.

    Raises:
        ExportError: Bundle, checkpoint and text do not go together.
        WiolaRuntimeError: The bundle is damaged, or the text cannot be measured on.
    """
    from wiola_export.console import watching  # noqa: PLC0415
    from wiola_export.measure import measure, texts_to_measure  # noqa: PLC0415
    from wiola_runtime.manifest import Manifest  # noqa: PLC0415
    from wiola_runtime.verify import require_files, verify_files  # noqa: PLC0415

    manifest = Manifest.read(bundle)
    require_files(bundle, manifest)
    verify_files(bundle, manifest)
    model = find_source(bundle, manifest, checkpoint, text)
    texts = texts_to_measure(text)
    with watching(quiet=quiet) as progress:
        return measure(bundle, manifest, model, texts, progress)


def find_source(
    bundle: Path, manifest: "Manifest", checkpoint: Path | None, text: Path | None
) -> "Model | None":
    """Open the checkpoint that a bundle was made from; None for random weights.

    Raises:
        OptionError: No checkpoint was named, or one where none can be.
        EvaluationError: The checkpoint is another one.
    """
    from wiola_export.options import DEMO, Source  # noqa: PLC0415
    from wiola_export.source import find_model  # noqa: PLC0415

    if manifest.weights == "random":
        if checkpoint is not None or text is not None:
            raise OptionError(
                f"{bundle} has random weights, which have no accuracy; "
                "drop --checkpoint and --text to measure size and speed"
            )
        return None
    if checkpoint is None and manifest.variant != DEMO:
        raise OptionError(f"give --checkpoint DIR, the checkpoint that {bundle} was made from")
    demo = Source(variant=DEMO)
    model = find_model(demo if checkpoint is None else Source(checkpoint=checkpoint))
    assert model.checkpoint is not None
    found, wanted = model.checkpoint.sha256(), str(manifest.source.checkpoint_sha256)
    if found != wanted:
        raise EvaluationError(
            f"{bundle} was made from checkpoint {wanted[:12]}…, but {model.checkpoint.folder} "
            f"is {found[:12]}…; give the one that it was made from"
        )
    return model
