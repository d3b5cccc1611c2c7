"""`wiola-export bench`: time bundles, and other engines beside them, in turns."""

from math import inf
from pathlib import Path

import click

from wiola_export.errors import OptionError

FOLDER = click.Path(path_type=Path)


@click.command(short_help="Time BUNDLEs in turns on this machine.")
@click.argument("bundles", type=FOLDER, nargs=-1, required=True, metavar="BUNDLE...")
@click.option(
    "--peer",
    "peers",
    type=FOLDER,
    multiple=True,
    help="A JSON file that describes another engine; repeatable. See docs/benchmarks.md.",
)
@click.option("--rounds", type=int, default=3, show_default=True, help="Processes of each.")
@click.option("--threads", type=int, help="Of every contestant.  [its own choice]")
@click.option("--depth", type=int, help="Tokens before the deep reply; 0: none.  [as fits]")
@click.option(
    "--timeout", type=float, default=600, show_default=True, help="Longest process, in seconds."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, not Markdown.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def bench(  # noqa: PLR0913 - one for each option
    bundles: tuple[Path, ...],
    peers: tuple[Path, ...],
    rounds: int,
    threads: int | None,
    depth: int | None,
    timeout: float,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Time loading, prompts and replies of BUNDLEs, and of other engines, in turns.

    Each round starts a new process of every contestant, so what slows the machine down slows all
    of them: read the ratios. Shown are medians over the rounds. Speed does not depend on what
    the weights are: random ones are as good.
    """
    from wiola_export import bench as timing  # noqa: PLC0415  heavy imports wait
    from wiola_export.console import watching  # noqa: PLC0415
    from wiola_export.report.markdown import markdown_table  # noqa: PLC0415

    if rounds < 1:
        raise OptionError(f"--rounds is {rounds}; expected an integer >= 1")
    if not 0 < timeout < inf:
        raise OptionError(f"--timeout is {timeout:g}; expected a number of seconds above 0")
    contestants = timing.contestants(bundles, peers)
    workload = timing.workload_for(bundles, depth_tokens=depth, threads=threads)
    with watching(quiet=quiet) as progress:
        found = timing.run_bench(contestants, workload, rounds, progress, timeout=timeout)
    if as_json:
        click.echo(timing.to_json(found), nl=False)
        return
    click.echo(timing.summary(found))
    click.echo()
    click.echo(timing.versions(found))
    click.echo()
    click.echo(markdown_table(timing.to_table(found)))
