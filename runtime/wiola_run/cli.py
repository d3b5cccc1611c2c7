"""Continue a text with an exported Wiola bundle, or chat with it."""

import argparse
import dataclasses
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from wiola_run.opening import (
    DONE,
    USER_CAN_FIX_IT,
    add_opening,
    open_model,
    tell_of_random_weights,
)
from wiola_run.terminal import Terminal
from wiola_runtime.config import GenerationChanges
from wiola_runtime.errors import GenerationError, WiolaRuntimeError
from wiola_runtime.model import Model
from wiola_runtime.reply import Piece, Result

INTERRUPTED = 130
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A console that lacks a character of the reply shows a substitute and goes on.
        sys.stdout.reconfigure(errors="replace")
    try:
        with open_model(arguments) as model:
            _run(model, arguments)
    except WiolaRuntimeError as error:
        print(f"wiola-run: error: {error}", file=sys.stderr)
        return USER_CAN_FIX_IT
    except BrokenPipeError:
        # The reader left; what is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


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
    add_opening(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _run(model: Model, arguments: argparse.Namespace) -> None:
    if arguments.self_test:
        report = model.self_test()
        if arguments.json:
            print(json.dumps(dataclasses.asdict(report), indent=2, sort_keys=True))
        report.require()
        if not arguments.json:
            print(f"self-test passed: logits differ by at most {report.max_abs_difference:.3g}")
        return
    tell_of_random_weights(model)
    if arguments.prompt is None:
        if arguments.json:
            raise GenerationError("--json needs --prompt or --self-test; a chat has no result")
        changes = _changes(arguments)
        model.defaults.changed(changes)  # what is out of range is said once, and now
        Terminal(model, changes).run()
        return
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    for piece in model.stream(prompt, **_changes(arguments)):
        _show(piece, model, as_json=arguments.json)


def _changes(arguments: argparse.Namespace) -> GenerationChanges:
    """Return the generation options that were given; all others are the bundle's."""
    known = GenerationChanges.__annotations__
    given = {name: value for name, value in vars(arguments).items() if name in known}
    path = given.get("json_schema")
    if path is not None:
        try:
            given["json_schema"] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise GenerationError(f"--json-schema {path} cannot be read ({error})") from error
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
        print(_statistics(piece.result, model.load_seconds), file=sys.stderr)


def _statistics(result: Result, load_seconds: float) -> str:
    timings = result.timings
    seed = "" if result.seed is None else f", seed {result.seed}"
    return (
        f"[{result.provider}: load {load_seconds:.2f} s; prompt {result.prompt_tokens} tokens "
        f"in {timings.prefill_seconds:.2f} s; reply {len(result.token_ids)} tokens, "
        f"{timings.decode_tokens_per_second:.1f} per second; "
        f"ended by {result.finish_reason}{seed}]"
    )
