"""Try a checkpoint's chat template before it goes into a bundle."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from wiola_runtime.chat import Chat
from wiola_runtime.errors import WiolaRuntimeError
from wiola_runtime.manifest import ChatSpec, TokenSpec
from wiola_runtime.text import Tokenizer

SECONDS = 30  # to start Python on a busy machine; a template takes some milliseconds


def chat_doubt(template: str, tokenizer_path: Path, tokens: TokenSpec) -> str | None:
    """Return why a template cannot be used; None where it can.

    It is tried in a process of its own, since nothing else bounds its time and memory.
    """
    given = json.dumps([template, str(tokenizer_path), dataclasses.asdict(tokens)])
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(  # noqa: S603  this very module
            command,
            input=given,
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=SECONDS,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {SECONDS} s"
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        return f"trying it ended with exit code {done.returncode} ({last or 'no message'})"
    return done.stdout.strip() or None


def refusal(spec: ChatSpec, tokens: TokenSpec, tokenizer: Tokenizer) -> str | None:
    """Return what a chat says to a plain message, or to one that spells out control tokens."""
    try:
        chat = Chat(spec, tokens, tokenizer)
        for content in ("Hello", " ".join(tokenizer.added_tokens)):
            chat.ids([{"role": "user", "content": content}])
    except WiolaRuntimeError as error:
        return str(error)
    return None


def main() -> None:
    """Read a template, a path and tokens from stdin; write why it cannot be used, if so."""
    template, path, fields = json.load(sys.stdin)
    tokens = TokenSpec(**fields)
    spec = ChatSpec(template=template, roles={}, turn_end=None)
    sys.stdout.write(refusal(spec, tokens, Tokenizer.read(Path(path), tokens)) or "")


if __name__ == "__main__":  # pragma: no cover - the other process
    main()
