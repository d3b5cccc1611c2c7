"""Serve an exported Wiola bundle by the protocol of OpenAI's API."""

import argparse
import os
import re
import sys
from collections.abc import Sequence

from wiola_run.opening import (
    DONE,
    USER_CAN_FIX_IT,
    add_opening,
    open_model,
    tell_of_random_weights,
)
from wiola_runtime import GenerationError, WiolaRuntimeError
from wiola_serve.limits import Limits

EXTRA = ("prometheus_client", "starlette", "uvicorn")
BUG = 1  # a supervisor starts it again
KEY_VARIABLE = "WIOLA_API_KEY"
LIMITS = (
    ("--max-tokens", "tokens", int, "N", "longest answer; default: what the context leaves"),
    ("--max-rows", "rows", int, "N", "answers worked on at the same time"),
    ("--max-queue", "queue", int, "N", "prompts that wait; beyond that, status 429"),
    ("--max-body", "body_bytes", int, "BYTES", "longest request"),
    ("--max-connections", "connections", int, "N", "open connections; beyond that, status 503"),
    ("--timeout", "seconds", float, "SECONDS", "time for a request and its answer"),
    ("--keep", "conversations", int, "N", "chats whose state is kept for the next turn"),
    ("--grace", "grace_seconds", float, "SECONDS", "time for running answers when it is stopped"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _serve(arguments)
    except WiolaRuntimeError as error:
        print(f"wiola-serve: error: {error}", file=sys.stderr)
        return USER_CAN_FIX_IT
    except ModuleNotFoundError as error:
        absent = str(error.name).partition(".")[0]
        if absent not in EXTRA:
            raise
        print(
            f"wiola-serve: error: {absent} is not installed; "
            "run: pip install 'wiola-runtime[server]'",
            file=sys.stderr,
        )
        return USER_CAN_FIX_IT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wiola-serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s, this machine")
    parser.add_argument(
        "--port", type=int, default=8000, help="default: %(default)s; 0: a free one"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"what clients must know; better given as {KEY_VARIABLE}"
    )
    parser.add_argument(
        "--allow-origin", type=_origin, action="append", default=[], metavar="ORIGIN",
        help="web pages whose scripts may use the server; repeatable",
    )  # fmt: skip
    for option, field, kind, metavar, text in LIMITS:
        default = getattr(Limits(), field)
        shown = text if default is None else f"{text}; default: {default:.15g}"
        parser.add_argument(
            option, dest=field, type=kind, metavar=metavar, default=default, help=shown
        )
    add_opening(parser)
    return parser


def _origin(text: str) -> str:
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no origin; expected scheme://host[:port]")
    return text


def _serve(arguments: argparse.Namespace) -> int:
    from wiola_serve import server  # noqa: PLC0415  an extra: its absence becomes an instruction
    from wiola_serve.guard import Access, is_loopback  # noqa: PLC0415

    limits = _limits(arguments)
    local, key = is_loopback(arguments.host), _key(arguments)
    access = Access(key=key, is_local=local, origins=tuple(arguments.allow_origin))
    with (
        server.listening(arguments.host, arguments.port) as sock,
        open_model(arguments) as model,
    ):
        tell_of_random_weights(model)
        if not local and key is None:
            print(
                f"wiola-serve: warning: who reaches {arguments.host} may use this server; set "
                f"{KEY_VARIABLE} to a secret",
                file=sys.stderr,
            )
        line = f"{model.manifest.name} at {server.url_of(sock)}/v1"
        serve = server.Server(model, limits, access).run_on
        return DONE if serve(sock, lambda: print(line, flush=True)) else BUG


def _limits(arguments: argparse.Namespace) -> Limits:
    """Return the limits; a message about one begins with its option."""
    chosen = {field: getattr(arguments, field) for _, field, *_ in LIMITS}
    try:
        return Limits(**chosen)
    except GenerationError as error:
        field, _, found = str(error).partition(" ")
        option = next(option for option, name, *_ in LIMITS if name == field)
        raise GenerationError(f"{option} {found}") from error


def _key(arguments: argparse.Namespace) -> str | None:
    """Return the API key, from the option or the environment."""
    key = arguments.api_key if arguments.api_key is not None else os.environ.get(KEY_VARIABLE)
    if key is None:
        return None
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise GenerationError("the API key is no UTF-8; choose another") from error
    if not key.strip():
        raise GenerationError(f"the API key is empty; give one, or unset {KEY_VARIABLE}")
    return key.strip()  # no header has white space at its ends
