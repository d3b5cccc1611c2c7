"""Several replies together: prompts are read in turns, and all are decoded in one pass a token.

A pass reads the weights once for all rows. A row that is finished leaves, and others may join at
any time.

Axes: B rows, V vocabulary.
"""

from collections import deque
from collections.abc import Sequence
from numbers import Integral
from typing import TypeGuard

from wiola_runtime.cancel import Cancellation, Cancelled
from wiola_runtime.clock import Clock
from wiola_runtime.config import GenerationConfig
from wiola_runtime.engine import Engine
from wiola_runtime.errors import CapacityError, WiolaRuntimeError
from wiola_runtime.generate import Logits
from wiola_runtime.reply import Reply, Result
from wiola_runtime.row import CHUNK_TOKENS, Row, Rows, RowsApart

Prompts = list[str] | list[Sequence[int]] | list[list[int]]


def is_several(prompt: object) -> TypeGuard[Prompts]:
    """Tell prompts from one prompt, which may be a list of ids."""
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], Integral)


class Member:
    """A reply on its way through a batch.

    Args:
        reply: What its tokens are added to.
        row: Holds the beginning of its prompt, or nothing yet.
        keeps: Whether the row is wanted when the reply has ended.

    Attributes:
        row: None while the reply is decoded, and afterwards where nobody wants it.
        text: What has become certain since somebody last emptied it.
        failure: Why the reply cannot go on.
    """

    def __init__(self, reply: Reply, row: Row, *, keeps: bool = False) -> None:
        self.reply = reply
        self.row: Row | None = row
        self.keeps = keeps
        self.clock = Clock()
        self.text = ""
        self.failure: WiolaRuntimeError | None = None
        self.unread = list(reply.prompt_ids[row.length :])
        self._pick = reply.pick
        self._has_begun = False

    @property
    def has_ended(self) -> bool:
        """Whether no token is wanted any more."""
        reply = self.reply
        return self.failure is not None or reply.ended_by is not None or reply.budget == 0

    def chunk(self, most: int) -> list[int]:
        """Take the next tokens of the prompt that are to be read."""
        if not self._has_begun:
            self._has_begun = True
            self.clock.begin()
        chunk, self.unread = self.unread[:most], self.unread[most:]
        return chunk

    def take(self, logits: Logits) -> None:
        """Choose the next token from logits (V,)."""
        try:
            token_id = self._pick(logits)
        except WiolaRuntimeError as error:  # its neighbours go on
            self.failure = error
            return
        self.clock.end()
        self.text += self.reply.add(token_id)

    def result(self) -> Result:
        """Return what came of it; the last of its text is in `text` then.

        Raises:
            WiolaRuntimeError: The reply has failed.
        """
        if self.failure is not None:
            raise self.failure
        piece = self.reply.finish(self.clock)
        assert piece.result is not None, "finish gives it"
        self.text += piece.text
        return piece.result


class Batch:
    """Replies that are read a chunk at a time, each in its turn, and decoded together.

    Args:
        rows: How they are decoded.
        chunk_tokens: Tokens of a prompt that are read at once: what others wait for at most.
    """

    def __init__(
        self, rows: Rows[Member] | RowsApart[Member], chunk_tokens: int = CHUNK_TOKENS
    ) -> None:
        self._rows = rows
        self._chunk_tokens = chunk_tokens
        self._reading: deque[Member] = deque()
        self._ready: dict[Member, Row] = {}

    @property
    def is_reading(self) -> bool:
        """Whether prompts wait to be read."""
        return bool(self._reading)

    @property
    def members(self) -> list[Member]:
        """All that have not ended."""
        return [*self._reading, *self._ready, *self._rows.members]

    def add(self, member: Member) -> None:
        """Let a reply join, unless no token of it is wanted."""
        if not member.has_ended:
            self._reading.append(member)

    def read(self) -> list[Member]:
        """Read a chunk of the next prompt; return the member if its first token came of that."""
        if not self._reading:
            return []
        member = self._reading.popleft()
        row = member.row
        assert row is not None, "it is not decoded yet"
        logits = row.step(member.chunk(self._chunk_tokens))
        if member.unread:
            self._reading.append(member)
            return []
        member.take(logits)
        if not member.has_ended:
            self._ready[member], member.row = row, None
        return [member]

    def decode(self) -> list[Member]:
        """Make the next token of every reply whose prompt is read; return them all."""
        if self._ready:
            self._rows.join(self._ready)
            self._ready = {}
        members = list(self._rows.members)
        if not members:
            return []
        for member in members:
            member.clock.begin()
        logits = self._rows.step([member.reply.token_ids[-1] for member in members])
        for member, scores in zip(members, logits, strict=True):
            member.take(scores)
            if member.has_ended and member.keeps:
                member.row = self._rows.copy(member)
        self._rows.keep([member for member in members if not member.has_ended])
        return members

    def drop(self, gone: Sequence[Member]) -> None:
        """Let some leave before their end."""
        self._reading = deque(member for member in self._reading if member not in gone)
        self._ready = {member: row for member, row in self._ready.items() if member not in gone}
        self._rows.keep([member for member in self._rows.members if member not in gone])


def generate_together(
    engine: Engine, prompts: Prompts, config: GenerationConfig, cancel: Cancellation | None = None
) -> list[Result]:
    """Return the reply to each prompt, in their order; every row draws with the same seed.

    Raises:
        GenerationError: A prompt is no text, or no ids of the vocabulary.
        CapacityError: A prompt leaves no room for a reply, or the cache grows by itself and the
            prompts differ in length.
    """
    texts = [engine.ids_of(prompt, begins=True) for prompt in prompts]
    for ids in texts:
        engine.require_room(len(ids))
    lengths = sorted({len(ids) for ids in texts})
    if engine.manifest.cache == "growing" and len(lengths) > 1:
        raise CapacityError(
            f"prompts of this bundle ({engine.manifest.target}) must have one length to be decoded "
            f"together, found {lengths} tokens; give one prompt at a time"
        )
    members = [Member(Reply(engine, ids, config), Row(engine.graph)) for ids in texts]
    try:
        _run(Batch(Rows(engine.graph)), members, cancel or Cancellation())
    except Cancelled:
        for member in members:
            member.reply.ended_by = member.reply.ended_by or "cancelled"
    return [member.result() for member in members]


def _run(batch: Batch, members: Sequence[Member], cancel: Cancellation) -> None:
    """Read every prompt, then decode the unfinished ones together."""
    for member in members:
        batch.add(member)
    while batch.is_reading:
        cancel.check()
        batch.read()
    while batch.members:
        cancel.check()
        batch.decode()
