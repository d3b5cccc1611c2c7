"""`wiola-export verify`: does a bundle give here what it gave where it was written?"""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from wiola_runtime.devices import Device


@click.command(short_help="Check files and self-test of BUNDLE.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--device", type=click.Choice(("cpu", "cuda", "auto")), default="cpu", show_default=True
)
@click.option("--threads", type=int, help="Threads of an operator.  [physical cores]")
def verify(bundle: Path, device: str, threads: int | None) -> None:
    """Check every file of BUNDLE by its SHA-256, then run its self-test on this machine."""
    import wiola_runtime as wr  # noqa: PLC0415  heavy imports wait

    with wr.load(bundle, device=cast("Device", device), threads=threads) as model:
        click.echo(f"files: {len(model.manifest.files)} as the manifest says")
        if model.manifest.self_test is None:
            raise wr.BundleError(f"{bundle} has no self-test; export it again")
        report = model.self_test()
        report.require()
    click.echo(
        f"self-test: passed on {model.provider}, logits within {report.max_abs_difference:.2g} "
        f"(allowed {report.tolerance:g})"
    )
    if model.manifest.weights == "random":
        click.echo("weights: RANDOM; the bundle measures size and speed, its text is noise")
