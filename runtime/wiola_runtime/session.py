"""One conversation: a text that grows, and its state in the graph."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from pathlib import Path
from typing import Literal, Self, Unpack

from wiola_runtime import asynchronous, saved
from wiola_runtime.cancel import Cancellation, Cancelled
from wiola_runtime.chat import Messages
from wiola_runtime.config import GenerationChanges, GenerationConfig, is_count
from wiola_runtime.engine import Engine
from wiola_runtime.errors import GenerationError, SessionError, WiolaRuntimeError
from wiola_runtime.exclusive import Exclusive
from wiola_runtime.reply import Piece, Reply, Result
from wiola_runtime.row import Row, Watched
from wiola_runtime.turns import Turns
from wiola_runtime.write import write

Overflow = Literal["error", "truncate"]
Content = str | Sequence[int]
Pieces = Generator[Piece, None, None]


class Session:
    """One conversation.

    What is appended is computed when a reply needs it, and never twice: a session that was
    rewound, forked, restored or cancelled goes on as a new one with the same text would. A session
    belongs to one thread at a time: a call while it is in use is a SessionError.

    Args:
        engine: What the bundle's replies share.
        overflow: What happens to a text that leaves no room for a reply: an error, or the oldest
            turns are forgotten. A turn is what was appended at once, and the replies to it.
    """

    def __init__(self, engine: Engine, overflow: Overflow = "error") -> None:
        if overflow not in ("error", "truncate"):
            raise GenerationError(f"overflow is {overflow!r}; expected 'error' or 'truncate'")
        self._engine = engine
        self._overflow: Overflow = overflow
        self._turns = Turns([], [], engine.manifest.tokens.bos_id)
        self._row: Row | None = None
        self._held = Exclusive()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The whole text; the token that ended a reply is not in it."""
        return tuple(self._turns.token_ids)

    @property
    def token_count(self) -> int:
        """Tokens of the text."""
        return len(self._turns.token_ids)

    @property
    def context_left(self) -> int:
        """Tokens that still fit."""
        return self._engine.manifest.context_length - self.token_count

    @property
    def text(self) -> str:
        """The whole text, special tokens left out."""
        return self._engine.tokenizer.decode(self._turns.token_ids)

    def append(self, content: Content) -> None:
        """Add a turn.

        Raises:
            CapacityError: No room for a reply would be left; nothing was added.
            GenerationError: It is no text, or no ids of the vocabulary.
        """
        with self._held():
            self._append(content)

    def replace(self, content: Content) -> int:
        """Make this the whole text; return how many tokens of state are of use for it.

        Raises:
            CapacityError: No room for a reply would be left; nothing was changed.
            GenerationError: It is no text, or no ids of the vocabulary.
        """
        with self._held():
            ids = self._engine.ids_of(content, begins=True)
            self._engine.require_room(len(ids))
            self._turns = Turns(ids, [0], self._turns.first_id)
            return 0 if self._row is None else self._row.shares(ids)

    def rewind(self, n_tokens: int) -> None:
        """Go back to the first `n_tokens` tokens of the text.

        Raises:
            GenerationError: There are not so many.
        """
        with self._held():
            most = self.token_count
            if not is_count(n_tokens, 0) or n_tokens > most:
                raise GenerationError(
                    f"n_tokens is {n_tokens}; expected 0 to {most}, all there are"
                )
            self._turns.cut(n_tokens)

    def fork(self) -> "Session":
        """Return another session with the same text, which goes its own way."""
        with self._held():
            other = Session(self._engine, self._overflow)
            other._turns = self._turns.copy()
            other._row = self._row.fork() if self._row else None
            return other

    def save(self, path: str | Path) -> None:
        """Write text and state to a file, whole or not at all; see `Model.restore`."""
        with self._held():
            fed_ids, arrays = self._row.dump() if self._row else ([], [])
            saved.write(
                path,
                saved.Saved(
                    bundle=self._engine.manifest.fingerprint,
                    overflow=self._overflow,
                    token_ids=self.token_ids,
                    turns=tuple(self._turns.starts),
                    fed_ids=tuple(fed_ids),
                    arrays=tuple(arrays),
                ),
            )

    @classmethod
    def restore(cls, engine: Engine, path: str | Path) -> Self:
        """Read a file that `save` wrote; see `Model.restore`."""
        found = saved.read(path, engine.manifest)
        session = cls(engine, found.overflow)
        session._turns = Turns([*found.token_ids], [*found.turns], session._turns.first_id)
        if found.arrays:
            state = engine.graph.resume(found.arrays, len(found.fed_ids))
            session._row = Row(engine.graph, state=state, token_ids=found.fed_ids)
        return session

    def generate(
        self,
        content: Content | None = None,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        on_text: Callable[[str], object] | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Result:
        """Append a turn, if given, and return the whole reply; see `stream`.

        `cancel` ends the reply when it is turned; what is there is returned. `on_text` is given
        each piece of text. If it raises `Cancelled`, the reply ends; any other exception comes back
        to the caller, and the session keeps what is there.
        """
        cancel = cancel or Cancellation()
        result: Result | None = None
        pieces = self.stream(content, config, cancel=cancel, **changes)
        with contextlib.closing(pieces):
            for piece in pieces:
                result = piece.result
                try:
                    if on_text and piece.text:
                        on_text(piece.text)
                except Cancelled:
                    cancel.cancel()
        assert result is not None, "the last piece has it"
        return result

    def stream(
        self,
        content: Content | None = None,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Pieces:
        """Append a turn, if given, and continue the text piece by piece.

        The last piece carries the `Result`. Closing the iterator ends the work; the session keeps
        the tokens whose text was handed out, and stays usable.

        Raises:
            GenerationError: An argument is out of its range; said at the call.
            CapacityError: No room for a reply is left; said at the call.
            SessionError: The session is in use; said at the call, or at the first piece, where the
                text may also have been changed since the call.
        """
        chosen = self._engine.config(config, changes)
        with self._held():
            before = self._turns.copy()
            try:
                if content is not None:
                    self._append(content)
                self._make_room(chosen)
                reply = Reply(self._engine, self.token_ids, chosen)
            except WiolaRuntimeError:
                self._turns = before
                raise
        return self._pieces(reply, cancel or Cancellation())

    def chat(
        self,
        messages: Messages,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        on_text: Callable[[str], object] | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Result:
        """Answer a conversation; see `stream_chat`, and `generate` for the arguments."""
        chosen = self._engine.config(config, changes)
        self._take(messages, chosen, cancel or Cancellation())
        return self.generate(None, chosen, cancel=cancel, on_text=on_text)

    def stream_chat(
        self,
        messages: Messages,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Pieces:
        """Make a whole conversation the text of the session, and answer it piece by piece.

        What its beginning has in common with the text so far is not computed again. Messages have
        `role` (system, user, assistant) and `content`, in which nothing is a control token.

        Raises:
            ChatError: The bundle has no chat format, or it refuses these messages.
            CapacityError: They leave no room for an answer. Where the session truncates, the oldest
                messages are left out first, but for the system's.
        """
        chosen = self._engine.config(config, changes)
        self._take(messages, chosen, cancel or Cancellation())
        return self.stream(None, chosen, cancel=cancel)

    def astream(
        self,
        content: Content | None = None,
        config: GenerationConfig | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> AsyncGenerator[Piece, None]:
        """Do what `stream` does on a thread of its own; closing the iterator cancels it.

        asyncio closes one that is left early some time later: `contextlib.aclosing` does at once.
        """
        cancel = Cancellation()
        return asynchronous.pieces(self.stream(content, config, cancel=cancel, **changes), cancel)

    def astream_chat(
        self,
        messages: Messages,
        config: GenerationConfig | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> AsyncGenerator[Piece, None]:
        """Do what `stream_chat` does on a thread of its own; see `astream`."""
        cancel = Cancellation()
        pieces = self.stream_chat(messages, config, cancel=cancel, **changes)
        return asynchronous.pieces(pieces, cancel)

    def _take(self, messages: Messages, config: GenerationConfig, cancel: Cancellation) -> None:
        """Make a conversation the text, its oldest messages left out if it must be."""
        chat, most = self._engine.chat, self._engine.longest_prompt(config)
        truncates = self._overflow == "truncate"
        self.replace(chat.fitting_ids(messages, most, cancel) if truncates else chat.ids(messages))

    def _append(self, content: Content) -> None:
        ids = self._engine.ids_of(content, begins=not self._turns.token_ids)
        grows = self._overflow == "error" and self.token_count > 0
        stays = self.token_count if grows else len(self._turns.lasting)
        self._engine.require_room(stays + len(ids), grown=grows)
        self._turns.add(ids)

    def _make_room(self, config: GenerationConfig) -> None:
        """Forget the oldest turns until there is room for a reply; the first token of all stays."""
        if not self._turns.token_ids:
            self._append("")
        if self._overflow == "truncate":
            self._turns.shorten(self._engine.longest_prompt(config))
        self._engine.require_room(self.token_count, grown=True)

    def _pieces(self, reply: Reply, cancel: Cancellation) -> Pieces:
        with self._held():
            prompt = list(reply.prompt_ids)
            if prompt != self._turns.token_ids:
                raise SessionError("the text was changed before its reply began; call stream again")
            row, reply.reused_tokens = self._aligned()
            for piece in write(reply, Watched(row, cancel.check)):
                self._turns.token_ids = prompt + reply.token_ids
                yield piece
            self._turns.token_ids = prompt + reply.token_ids

    def _aligned(self) -> tuple[Row, int]:
        """Return the row, and how much of the text it holds: all but one token at most."""
        if self._row is None:
            self._row = Row(self._engine.graph)
        shared = self._row.shares(self._turns.token_ids)
        return self._row, self._row.rewind(min(shared, self.token_count - 1))
