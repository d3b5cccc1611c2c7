"""The thread's side: it alone touches the model, and speaks to the window in signals."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from PySide6.QtCore import QObject, Signal, SignalInstance, Slot

import wiola_runtime as wr
from conversation import Conversation, Turn

Device = Literal["cpu", "cuda", "auto"]
# Text is handed over so often, not for each token: a fast model would flood the window.
SECONDS_BETWEEN_UPDATES = 1 / 30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What the window shows of a bundle.

    Attributes:
        fingerprint: Ties conversations to the bundle.
        no_chat: Why it cannot chat; None where it can.
        is_random: Whether its weights are random.
    """

    name: str
    fingerprint: str
    precision: str
    provider: str
    context_length: int
    no_chat: str | None
    is_random: bool
    defaults: wr.GenerationConfig

    @classmethod
    def of(cls, model: wr.Model) -> Self:
        """Describe an opened model."""
        manifest = model.manifest
        return cls(
            name=manifest.name,
            fingerprint=manifest.fingerprint,
            precision=manifest.precision,
            provider=model.provider,
            context_length=manifest.context_length,
            no_chat=_chat_obstacle(model),
            is_random=manifest.weights == "random",
            defaults=model.defaults,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the window wants to be answered.

    Attributes:
        conversation: The whole of it; what the model has seen already is not computed again.
        cancel: The window's switch to end the reply.
    """

    conversation: Conversation
    temperature: float
    max_new_tokens: int
    cancel: wr.Cancellation


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Some more text of a reply.

    Attributes:
        tokens: Of the whole conversation, this text included.
        tokens_per_second: 0 before there is a rate.
    """

    text: str
    tokens: int
    tokens_per_second: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished reply.

    Attributes:
        forgot: Whether the oldest turns no longer fitted into the context.
    """

    text: str
    finish_reason: str
    tokens_per_second: float
    forgot: bool


class Worker(QObject):
    """Loads bundles and writes replies, one after the other.

    It lives in a thread of its own: call its slots by signals. Whatever happens in a slot, one of
    its signals ends it, so that the window never waits in vain.
    """

    loaded = Signal(object)  # Opened
    load_failed = Signal(str)
    progressed = Signal(object)  # Progress
    answered = Signal(object)  # Answer
    answer_failed = Signal(str)

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._model: wr.Model | None = None
        self._session: wr.Session | None = None
        self._held: tuple[Turn, ...] | None = None  # turns of a text that the session holds

    @Slot(object)
    def load(self, folder: Path) -> None:
        """Open a bundle; the one before stays open if that fails."""
        with _telling(self.load_failed, "loading the bundle"):
            model = wr.load(folder, device=self._device)
            if self._model is not None:
                self._model.close()
            self._model, self._session, self._held = model, None, None
            self.loaded.emit(Opened.of(model))

    @Slot(object)
    def answer(self, request: Request) -> None:
        """Write a reply, piece by piece."""
        with _telling(self.answer_failed, "the reply"):
            self.answered.emit(self._answer(request))

    def _answer(self, request: Request) -> Answer:
        assert self._model is not None, "the window asks after a bundle is loaded"
        text_turns = request.conversation.turns if request.conversation.mode == "text" else None
        session, prompt_tokens = self._prepared(request.conversation)
        config = self._model.defaults.changed(
            {"temperature": request.temperature, "max_new_tokens": request.max_new_tokens}
        )
        if text_turns is None:
            messages = request.conversation.messages()
            pieces = session.stream_chat(messages, config, cancel=request.cancel)
        else:
            pieces = session.stream(config=config, cancel=request.cancel)
        result = self._written(pieces, session)
        if text_turns is not None:
            self._held = (*text_turns, Turn("assistant", result.text))
        return Answer(
            text=result.text,
            finish_reason=result.finish_reason,
            tokens_per_second=result.timings.decode_tokens_per_second,
            forgot=result.prompt_tokens < prompt_tokens,
        )

    def _prepared(self, conversation: Conversation) -> tuple[wr.Session, int]:
        """Return the session for a conversation, and the tokens that all of it has."""
        assert self._model is not None
        held, self._held = self._held, None  # until the reply is there
        if conversation.mode == "chat":
            self._session = self._session or self._model.session(overflow="truncate")
            return self._session, len(self._model.chat_ids(conversation.messages()))
        if self._session is None or held is None or conversation.turns[: len(held)] != held:
            self._session, held = self._model.session(overflow="truncate"), ()
        for turn in conversation.turns[len(held) :]:
            self._session.append(turn.content)
        return self._session, self._session.token_count

    def _written(self, pieces: Iterator[wr.Piece], session: wr.Session) -> wr.Result:
        """Hand a reply over as it comes; return its result."""
        result: wr.Result | None = None
        waiting, shown, first, before = "", 0.0, None, 0
        for piece in pieces:
            result, now, tokens = piece.result, time.perf_counter(), session.token_count
            if first is None:
                first, before = now, tokens
            waiting += piece.text
            if result is not None or now - shown >= SECONDS_BETWEEN_UPDATES:
                rate = (tokens - before) / (now - first) if now > first else 0.0
                self.progressed.emit(Progress(text=waiting, tokens=tokens, tokens_per_second=rate))
                waiting, shown = "", now
        assert result is not None, "the last piece has it"
        return result


@contextlib.contextmanager
def _telling(failed: SignalInstance, what: str) -> Iterator[None]:
    """Let a signal tell every failure; one that is not the runtime's shows its traceback too."""
    message: str | None = f"{what} failed unexpectedly; the terminal tells more"
    try:
        yield
        message = None
    except wr.WiolaRuntimeError as error:
        message = str(error)
    finally:
        if message is not None:
            failed.emit(message)


def _chat_obstacle(model: wr.Model) -> str | None:
    try:
        model.chat_ids([{"role": "user", "content": "Hello"}])
    except wr.ChatError as error:
        return str(error)
    return None
