"""`wiola-export --list`: show what can be exported by name, and what it will take."""

import dataclasses
import json

import click

PIPE_WIDTH = 120
COLUMNS = (
    ("variant", "left"),
    ("family", "left"),
    ("parameters", "right"),
    ("context", "right"),
    ("fp32", "right"),
    ("int8", "right"),
    ("int4", "right"),
    ("keys, values", "right"),
    ("sums", "right"),
)
CAPTION = (
    "Sizes: weights of a CPU bundle. Keys and values: one full context in float32; half of it on "
    "CUDA, a quarter with --int8-cache. Sums: float32, whatever the length. Packaged checkpoints: "
)


def list_models(*, as_json: bool) -> None:
    """Print every published size, and the packaged checkpoints by name."""
    from wiola_export.catalogue import entries  # noqa: PLC0415  heavy imports wait
    from wiola_export.options import DEMOS  # noqa: PLC0415

    found = list(entries())
    if as_json:
        models = [dataclasses.asdict(entry) for entry in found]
        click.echo(json.dumps({"models": models, "packaged": list(DEMOS)}, indent=2))
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    terminal = Console(highlight=False)
    # In a pipe there is no width to fit.
    console = terminal if terminal.is_terminal else Console(highlight=False, width=PIPE_WIDTH)
    table = Table(caption=CAPTION + ", ".join(DEMOS), caption_justify="left")
    for title, side in COLUMNS:
        table.add_column(title, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for one in found:
        sizes = [_size(one.weight_bytes[p]) for p in ("fp32", "int8", "int4")]
        table.add_row(
            *(one.variant, one.family, f"{one.parameters:,}", f"{one.context_length:,}"),
            *(*sizes, _size(one.cache_bytes), _size(one.sum_bytes)),
        )
    with console.capture() as text:
        console.print(table)
    click.echo(text.get(), nl=False)


def _size(count: int) -> str:
    """Write bytes in decimal units, as the papers do."""
    if count < 1e6:  # noqa: PLR2004  a million bytes
        return f"{count / 1e3:,.0f} kB"
    return f"{count / 1e6:,.0f} MB" if count < 1e10 else f"{count / 1e9:,.1f} GB"  # noqa: PLR2004
