"""A conversation in the terminal: `wiola-run BUNDLE` without a prompt."""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wiola_run.streams import say
from wiola_runtime.cancel import Cancellation
from wiola_runtime.config import GenerationChanges
from wiola_runtime.errors import SessionError, WiolaRuntimeError
from wiola_runtime.model import Model
from wiola_runtime.saved import write_whole
from wiola_runtime.session import Pieces, Session

if TYPE_CHECKING:
    from wiola_runtime.reply import Result

HELP = "/save FILE, /load FILE, /reset, /stats, /help, /quit; Ctrl-C stops an answer, Ctrl-D quits"
QUITTING = "Ctrl-C once more, Ctrl-D or /quit ends the conversation"


class Terminal:
    """Reads lines, answers them, and keeps the conversation.

    Where the bundle has no chat format, a line continues the text as it is.

    Args:
        model: An opened bundle.
        changes: What replies are made with.
        system: A first message, of role system.

    Raises:
        ChatError: The bundle has no chat format, or none for a system's message.
    """

    def __init__(
        self, model: Model, changes: GenerationChanges, *, system: str | None = None
    ) -> None:
        self._model = model
        self._changes = changes
        self._session: Session = model.session(overflow="truncate")
        self._beginning: list[dict[str, str]] = []
        if system is not None:
            self._beginning = [{"role": "system", "content": system}]
            model.chat_ids([*self._beginning, {"role": "user", "content": "Hello"}])
        self._messages = self._first_messages()
        self._last: Result | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "/save": self._save,
            "/load": self._load,
            "/reset": lambda _: self._reset(),
            "/stats": lambda _: self._stats(),
            "/help": lambda _: say(HELP),
        }

    def run(self) -> None:
        """Converse until the input ends or someone quits."""
        kind = "a chat" if self._messages is not None else "no chat format: lines continue a text"
        say(f"{self._model.manifest.name} ({kind}). {HELP}")
        for line in lines():
            word, _, rest = line.partition(" ")
            if word == "/quit":
                return
            try:
                if word in self._commands:
                    self._commands[word](rest.strip())
                elif line.startswith("/"):
                    say(f"unknown command {word}; {HELP}")
                elif line:
                    self._answer(line)
            except WiolaRuntimeError as error:
                say(f"error: {error}")
            except KeyboardInterrupt:  # of something that is quick, as a rule
                say(f"interrupted; {QUITTING}")

    def _first_messages(self) -> list[dict[str, str]] | None:
        return None if self._model.manifest.chat is None else [*self._beginning]

    def _answer(self, line: str) -> None:
        with interruptible() as cancel:
            for piece in self._pieces(line, cancel):
                print(piece.text, end="", flush=True)
                self._last = piece.result or self._last
            print()
            if self._messages is not None and self._last is not None:
                self._messages.append({"role": "assistant", "content": self._last.text.strip()})

    def _pieces(self, line: str, cancel: Cancellation) -> Pieces:
        if self._messages is None:
            return self._session.stream(line, cancel=cancel, **self._changes)
        asked = [*self._messages, {"role": "user", "content": line}]
        pieces = self._session.stream_chat(asked, cancel=cancel, **self._changes)
        self._messages = asked
        return pieces

    def _save(self, path: str) -> None:
        if not path:
            say("/save needs a file name")
            return
        if self._messages is None:
            self._session.save(Path(path))
            say(f"saved {self._session.token_count} tokens to {path}")
            return
        text = json.dumps(self._messages, ensure_ascii=False, indent=2)
        write_whole(Path(path), lambda file: file.write(text.encode()))
        say(f"saved {len(self._messages)} messages to {path}")

    def _load(self, path: str) -> None:
        if not path:
            say("/load needs a file name")
            return
        if self._messages is None:
            self._session = self._model.restore(Path(path))
            say(f"loaded {self._session.token_count} tokens")
            return
        try:
            messages = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise SessionError(f"{path} not found; /save writes such a file") from error
        except (OSError, ValueError, RecursionError) as error:
            raise SessionError(f"{path} is no saved chat ({error})") from error
        self._model.chat_ids(messages)  # refuses what are no messages
        self._messages = messages
        say(f"loaded {len(messages)} messages")

    def _reset(self) -> None:
        self._session, self._last = self._model.session(overflow="truncate"), None
        self._messages = self._first_messages()
        say("a new conversation")

    def _stats(self) -> None:
        session = self._session
        say(f"{session.token_count} tokens, {session.context_left} left")
        if self._last is not None:
            timings = self._last.timings
            say(
                f"last answer: {len(self._last.token_ids)} tokens, "
                f"{timings.decode_tokens_per_second:.1f} per second, first after "
                f"{timings.first_token_seconds:.2f} s, {self._last.reused_tokens} tokens reused, "
                f"{guessed(self._last)}ended by {self._last.finish_reason}, {self._last.provider}"
            )


def guessed(result: "Result") -> str:
    """Say how many guesses were right, where some were asked for."""
    guesses = result.guesses
    return f"{guesses.accepted} of {guesses.guessed} guessed tokens right, " if guesses else ""


def lines() -> Iterator[str]:
    """Yield the lines that are typed, until the input ends or Ctrl-C comes twice at the prompt.

    Raises:
        KeyboardInterrupt: It came while nobody types.
    """
    prompt = _prompt()
    interrupted = False
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            if not prompt:
                raise
            if interrupted and not _typed():
                break
            print()
            say(QUITTING)
            interrupted = True
        else:
            interrupted = False
            yield line
    if prompt:
        print()


def _typed() -> str:
    """Return what stood in the line that Ctrl-C took away, where that is known."""
    editor = sys.modules.get("readline")
    return editor.get_line_buffer() if editor else ""


def _prompt() -> str:
    """Return what a person at a terminal is shown, and let them edit their lines."""
    if not sys.stdin.isatty():
        return ""
    with contextlib.suppress(ImportError):  # Windows edits lines by itself
        import readline  # noqa: F401, PLC0415  from now on `input` edits and remembers lines
    return "> "


@contextlib.contextmanager
def interruptible() -> Iterator[Cancellation]:
    """Yield a cancellation that Ctrl-C turns, instead of ending the program."""
    cancel = Cancellation()
    before = signal.signal(signal.SIGINT, lambda *_: cancel.cancel())
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)
