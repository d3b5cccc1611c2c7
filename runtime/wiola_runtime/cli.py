"""Continue a text with an exported Wiola bundle."""

import argparse
import dataclasses
import io
import json
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from wiola_runtime.errors import WiolaRuntimeError
from wiola_runtime.model import Model, load
from wiola_runtime.reply import Piece, Result

DONE, USER_CAN_FIX_IT, INTERRUPTED = 0, 2, 130
RANDOM_WEIGHTS = """\
**********************************************************************
*  THE WEIGHTS OF THIS BUNDLE ARE RANDOM: the text below is noise.   *
*  It measures size and speed on this machine, nothing else.         *
**********************************************************************"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A console that lacks a character of the reply shows a substitute and goes on.
        sys.stdout.reconfigure(errors="replace")
    try:
        with load(
            arguments.bundle,
            device=arguments.device,
            threads=arguments.threads,
            verify=not arguments.no_verify,
        ) as model:
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
    parser.add_argument("bundle", type=Path, help="folder that wiola-export wrote")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--prompt", metavar="TEXT", help="text to continue; - reads stdin")
    action.add_argument(
        "--self-test", action="store_true", help="compare this machine with the exporting one"
    )
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-k", type=int, metavar="K")
    parser.add_argument("--top-p", type=float, metavar="P")
    parser.add_argument("--min-p", type=float, metavar="P")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X")
    parser.add_argument("--seed", type=int, help="same seed, same text; default: random")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="repeatable")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu")
    parser.add_argument("--threads", type=int, metavar="N", help="default: physical cores")
    parser.add_argument("--no-verify", action="store_true", help="skip the SHA-256 of the files")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    return parser


def _version() -> str:
    try:
        return metadata.version("wiola-runtime")
    except metadata.PackageNotFoundError:
        return "(run from its sources)"


def _run(model: Model, arguments: argparse.Namespace) -> None:
    if arguments.self_test:
        report = model.self_test()
        report.require()
        print(f"self-test passed: logits differ by at most {report.max_abs_difference:.3g}")
        return
    if model.manifest.weights == "random":
        print(RANDOM_WEIGHTS, file=sys.stderr)
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    pieces = model.stream(
        prompt,
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
        stop=arguments.stop,
    )
    for piece in pieces:
        _show(piece, model, as_json=arguments.json)


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
