"""The command line: parse, call, turn known failures into one line."""

import io
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import click

from wiola_export.commands.bench import bench
from wiola_export.commands.catalogue import list_models
from wiola_export.commands.export import EXPORT_OPTIONS, run_export
from wiola_export.commands.inspect import inspect
from wiola_export.commands.report import report
from wiola_export.commands.study import study
from wiola_export.commands.verify import verify
from wiola_export.errors import AccuracyError, ExportError, OptionError
from wiola_runtime.errors import WiolaRuntimeError

NAME = "wiola-export"
DONE, USER_CAN_FIX_IT, TOO_INACCURATE, INTERRUPTED = 0, 2, 3, 130


@click.group(
    invoke_without_command=True,
    params=[*EXPORT_OPTIONS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
    epilog="`wiola-run BUNDLE --prompt TEXT` generates text from a bundle.",
)
@click.option("--list", "lists", is_flag=True, help="Show what can be exported by name, and exit.")
@click.option("--debug", is_flag=True, help="Show the traceback of a known failure.")
@click.version_option(metadata.version(NAME), prog_name=NAME)
@click.pass_context
def app(context: click.Context, /, lists: bool, debug: bool, **choices: Any) -> None:  # noqa: ANN401, ARG001
    """Export a Wiola checkpoint to a quantized, self-contained ONNX bundle.

    \b
    wiola-export --variant demo --int8
    wiola-export --checkpoint DIR --int4 --out my-bundle
    wiola-export --list
    wiola-export inspect my-bundle
    """  # noqa: D301  click's mark for lines that it must not wrap
    given = [
        parameter.opts[0]
        for parameter in EXPORT_OPTIONS
        if context.get_parameter_source(str(parameter.name))
        is click.core.ParameterSource.COMMANDLINE
    ]
    if lists:
        _list_models(context.invoked_subcommand, given, as_json=choices["json"])
    elif context.invoked_subcommand is None:
        if not given:
            click.echo(context.get_help())
            return
        run_export(choices)
    elif given:
        raise OptionError(
            f"{', '.join(given)} belongs to an export, not to `{context.invoked_subcommand}`; "
            f"see `{NAME} {context.invoked_subcommand} --help`"
        )


def _list_models(command: str | None, given: Sequence[str], *, as_json: bool) -> None:
    others = [command] if command else [option for option in given if option != "--json"]
    if others:
        raise OptionError(f"--list stands alone or with --json; drop {', '.join(others)}")
    list_models(as_json=as_json)


app.add_command(inspect)
app.add_command(verify)
app.add_command(report)
app.add_command(study)
app.add_command(bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 done, 1 a bug (with its traceback), 2 something the user can fix, 3 the limit on accuracy was
    missed, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Threads of torch that spin while they wait take three times as long to calibrate beside one
    # busy process on two cores (95 s against 33 s), and gain nothing on an idle machine. This is
    # read when torch is imported, which no command has done yet.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A console that lacks a character shows a substitute and goes on.
        sys.stdout.reconfigure(errors="replace")
    try:
        return _run(arguments)
    except (ExportError, WiolaRuntimeError) as error:
        if "--debug" in arguments:
            raise
        inaccurate = isinstance(error, AccuracyError)
        return _fail(str(error), TOO_INACCURATE if inaccurate else USER_CAN_FIX_IT)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else NAME
        return _fail(f"{error.format_message()} See `{command} --help`.")
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    try:
        with app.make_context(NAME, arguments.copy()) as context:
            app.invoke(context)
    except click.exceptions.Exit as leaving:  # --help, --version
        return leaving.exit_code
    except BrokenPipeError:
        # The reader left; what is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _fail(message: str, code: int = USER_CAN_FIX_IT) -> int:
    line = " ".join(message.split())
    click.echo(f"{NAME}: error: {line}", err=True)
    return code
