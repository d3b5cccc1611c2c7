"""`wiola-export inspect`: show what a bundle holds, from its manifest alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from wiola_runtime.manifest import Manifest


PIPE_WIDTH = 140


@click.command(short_help="Show what BUNDLE holds.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def inspect(bundle: Path, *, as_json: bool) -> None:
    """Show what BUNDLE holds; nothing is loaded or checked."""
    from wiola_runtime.manifest import Manifest  # noqa: PLC0415  heavy imports wait

    manifest = Manifest.read(bundle)
    if as_json:
        click.echo(manifest.to_json(), nl=False)
        return
    from rich.console import Console  # noqa: PLC0415

    terminal = Console(highlight=False)
    # In a pipe there is no width to fit.
    console = terminal if terminal.is_terminal else Console(highlight=False, width=PIPE_WIDTH)
    with console.capture() as text:
        for section in (identity, contract, matrices, sizes, files):
            console.print(section(manifest))
    click.echo(text.get(), nl=False)


def identity(manifest: "Manifest") -> "Table":
    """Say what the bundle is."""
    tokens, test = manifest.tokens, manifest.self_test
    table = _table(manifest.name, "", "")
    source = manifest.source.checkpoint_sha256
    origin = f"checkpoint {source[:12]}…" if source else f"seed {manifest.source.seed}"
    rows = {
        "family": f"{manifest.family}, variant {manifest.variant or 'none'}",
        "weights": f"{manifest.weights} ({origin})",
        "precision": f"{manifest.precision}, scheme {manifest.quantization.scheme}",
        "target": f"{manifest.target}, ONNX Runtime from {manifest.graph.minimum_onnxruntime}",
        "context": f"{manifest.context_length:,} tokens, vocabulary {manifest.vocab_size:,}",
        "tokens": f"bos {tokens.bos_id}, eos {list(tokens.eos_ids)}, pad {tokens.pad_id}",
        "self-test": f"{len(test.token_ids)} tokens, logits within {test.tolerance:g}"
        if test
        else "none",
        "written by": ", ".join(f"{name} {v}" for name, v in sorted(manifest.producer.items())),
    }
    for key, value in rows.items():
        table.add_row(key, value)
    return table


def contract(manifest: "Manifest") -> "Table":
    """List inputs and outputs, state folded to one line a kind and shape."""
    table = _table("contract", "name", "type", "axes", "role")
    seen: set[tuple[object, ...]] = set()
    for spec in (*manifest.inputs, *manifest.outputs):
        stem = spec.name if spec.role != "state" else _stem(spec.name)
        key = (stem, spec.axes)
        if key not in seen:
            seen.add(key)
            table.add_row(stem, spec.dtype, "(" + ", ".join(map(str, spec.axes)) + ")", spec.role)
    return table


def matrices(manifest: "Manifest") -> "Table":
    """List how every matrix is stored."""
    from wiola_export.report.coverage import measure_coverage  # noqa: PLC0415
    from wiola_export.report.figures import size  # noqa: PLC0415

    title = measure_coverage(manifest.quantization).sentence()
    table = _table(title, "matrix", "shape", "bits", "block", "size", "note")
    for tensor in manifest.quantization.tensors:
        shape = " × ".join(map(str, tensor.shape))
        block, bits = str(tensor.block_size or "row"), str(tensor.bits)
        block = "" if tensor.bits > 8 else block  # noqa: PLR2004  floats have no blocks
        table.add_row(tensor.name, shape, bits, block, size(tensor.size_bytes), tensor.note)
    return table


def sizes(manifest: "Manifest") -> "Table":
    """Say which part of the model takes how much."""
    from wiola_export.report.figures import significant, size  # noqa: PLC0415
    from wiola_export.report.size import measure_sizes  # noqa: PLC0415

    found = measure_sizes(manifest)
    table = _table(f"{size(found.total_bytes)} on disk", "part", "size")
    for name, size_bytes in {**found.by_file, **found.by_part}.items():
        if size_bytes:
            table.add_row(name, size(size_bytes))
    if found.bits_per_weight is not None:
        table.caption = f"{significant(found.bits_per_weight)} bits per weight of the matrices"
    return table


def files(manifest: "Manifest") -> "Table":
    """List the files with size and hash."""
    from wiola_export.report.figures import size  # noqa: PLC0415

    table = _table("files", "file", "size", "SHA-256")
    for name, file in sorted(manifest.files.items()):
        table.add_row(name, size(file.size_bytes), f"{file.sha256[:16]}…")
    return table


def _stem(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _table(title: str, *columns: str) -> "Table":
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
