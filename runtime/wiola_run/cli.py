"""Continue a text with an exported Wiola bundle, or chat with it."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from wiola_run.interrupts import INTERRUPTED
from wiola_run.opening import (
    DONE,
    USER_CAN_FIX_IT,
    add_opening,
    open_model,
    tell_of_random_weights,
)
from wiola_run.streams import abandon, accept_any_text, say
from wiola_run.terminal import Terminal, guessed
from wiola_runtime.config import GenerationChanges
from wiola_runtime.errors import GenerationError, WiolaRuntimeError
from wiola_runtime.model import Model
from wiola_runtime.reply import Piece, Result

# What is not given is as the bundle's generation_config says, or else as the runtime does.
GENERATION = (
    ("--max-new-tokens", int, "N", "longest reply"),
    ("--temperature", float, "T", "0 is greedy"),
    ("--top-k", int, "K", "draw among the K likeliest tokens"),
    ("--top-p", float, "P", "draw among the likeliest that reach P together"),
    ("--min-p", float, "P", "draw among those with P times the best one's chance"),
    ("--typical-p", float, "P", "draw among the most typical that reach P together"),
    ("--repetition-penalty", float, "X", "above 1: less of what was there already"),
    ("--presence-penalty", float, "X", "taken off what the reply holds already"),
    ("--frequency-penalty", float, "X", "the same for each time"),
    ("--seed", int, "N", "same seed, same text; default: random"),
    ("--draft-tokens", int, "N", "guess so many tokens where the text repeats itself"),
    ("--json-schema", Path, "FILE", "the reply is JSON that this schema allows"),
    ("--regex", str, "TEXT", "the reply matches this expression"),
)
GENERATION_NAMES = frozenset(GenerationChanges.__annotations__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = _parser().parse_args(argv)
    accept_any_text()
    try:
        _check(arguments)
        with open_model(arguments) as model:
            _run(model, arguments)
    except WiolaRuntimeError as error:
        return _fail(str(error))
    except BrokenPipeError:
        abandon(sys.stdout)
    except OSError as error:
        abandon(sys.stdout)
        return _fail(f"input or output failed ({error}); see where stdin and stdout lead")
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _fail(message: str) -> int:
    try:
        say(f"wiola-run: error: {message}")
    except OSError:
        abandon(sys.stderr)
    return USER_CAN_FIX_IT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wiola-run", description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--prompt", metavar="TEXT", help="text to continue; - reads stdin; without it, a chat"
    )
    action.add_argument(
        "--self-test", action="store_true", help="compare this machine with the exporting one"
    )
    for option, kind, metavar, text in GENERATION:
        parser.add_argument(
            option, type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS
        )
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", default=argparse.SUPPRESS, help="repeatable"
    )
    parser.add_argument(
        "--system", metavar="TEXT", help="first message of a chat: what the model should be"
    )
    add_opening(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options without effect before anything is opened.

    Raises:
        GenerationError: There is one, or nowhere to read from.
    """
    chats = arguments.prompt is None and not arguments.self_test
    if arguments.json and chats:
        raise GenerationError("--json needs --prompt or --self-test; a chat has no result")
    idle = [name for name in vars(arguments) if name in GENERATION_NAMES]
    if arguments.self_test and idle:
        option = "--" + idle[0].replace("_", "-")
        raise GenerationError(f"{option} has no effect with --self-test; leave it out")
    if arguments.system is not None and not chats:
        raise GenerationError("--system has no effect but in a chat; leave it out")
    if sys.stdin is None and (chats or arguments.prompt == "-"):
        raise GenerationError("stdin is closed; give the text as --prompt TEXT")


def _run(model: Model, arguments: argparse.Namespace) -> None:
    if arguments.self_test:
        _test(model, as_json=arguments.json)
        return
    tell_of_random_weights(model)
    if arguments.prompt is None:
        changes = _changes(arguments)
        model.defaults.changed(changes)  # what is out of range is said once, and now
        Terminal(model, changes, system=arguments.system).run()
        return
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    for piece in model.stream(prompt, **_changes(arguments)):
        _show(piece, model, as_json=arguments.json)


def _test(model: Model, *, as_json: bool) -> None:
    report = model.self_test()
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=2, sort_keys=True))
    report.require()
    if not as_json:
        print(f"self-test passed: logits differ by at most {report.max_abs_difference:.3g}")


def _changes(arguments: argparse.Namespace) -> GenerationChanges:
    """Return the generation options that were given; all others are the bundle's."""
    given = {name: value for name, value in vars(arguments).items() if name in GENERATION_NAMES}
    path = given.get("json_schema")
    if path is not None:
        try:
            given["json_schema"] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise GenerationError(
                f"--json-schema {path} cannot be read ({error}); expected a FILE with a schema"
            ) from error
    return cast("GenerationChanges", given)


def _show(piece: Piece, model: Model, *, as_json: bool) -> None:
    if not as_json:
        print(piece.text, end="", flush=True)
    if piece.result is None:
        return
    if as_json:
        fields = dataclasses.asdict(piece.result) | {"load_seconds": model.load_seconds}
        print(json.dumps(fields, indent=2, sort_keys=True))
    else:
        print()
        say(_statistics(piece.result, model.load_seconds))


def _statistics(result: Result, load_seconds: float) -> str:
    timings = result.timings
    seed = "" if result.seed is None else f", seed {result.seed}"
    return (
        f"[{result.provider}: load {load_seconds:.2f} s; prompt {result.prompt_tokens} tokens "
        f"in {timings.prefill_seconds:.2f} s; reply {len(result.token_ids)} tokens, "
        f"{timings.decode_tokens_per_second:.1f} per second; "
        f"{guessed(result)}ended by {result.finish_reason}{seed}]"
    )
