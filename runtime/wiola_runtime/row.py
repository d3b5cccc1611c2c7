"""One text on its way through the graph, which can go back.

Keys and values of a token stay where they are, but a running sum cannot be taken back: copies of
the sums are kept every `SUMS_EVERY` tokens, and what lies between a copy and the wanted position
is fed again. A model of 120M parameters keeps 34 kB for 64 tokens, whose keys and values take
1.6 MB.

Axes: T new positions, V vocabulary.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.generate import Logits
from wiola_runtime.graph import Graph
from wiola_runtime.state import State, Sums

# Tokens of one call: enough to keep every core in large matrix products, while activations and
# the logits of a call stay at some ten megabytes.
CHUNK_TOKENS = 256
SUMS_EVERY = 64
Member = TypeVar("Member", bound=Hashable)


def carry_on() -> None:
    """Do nothing; what is called before each chunk may raise instead."""


class Row:
    """One text in the graph, with a state of its own.

    Attributes:
        state: What the graph remembers of it.
        token_ids: The text.
        copies: Running sums, each with the length of the text that it belongs to.
    """

    def __init__(
        self,
        graph: Graph,
        chunk_tokens: int = CHUNK_TOKENS,
        *,
        state: State | None = None,
        token_ids: Sequence[int] = (),
        copies: Sequence[tuple[int, Sums]] = (),
    ) -> None:
        self._graph = graph
        self._chunk_tokens = chunk_tokens
        self._empty = graph.no_sums()  # nothing where the model has no running sums
        self.copies = list(copies)
        self.state = state or graph.start()
        self.token_ids = list(token_ids)

    @property
    def length(self) -> int:
        """How many tokens the state holds."""
        return len(self.token_ids)

    def shares(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens a text has in common with this one from the beginning."""
        pairs = enumerate(zip(self.token_ids, token_ids, strict=False))
        shorter = min(self.length, len(token_ids))
        return next((i for i, (mine, other) in pairs if mine != other), shorter)

    def step(self, token_ids: Sequence[int], before: Callable[[], None] = carry_on) -> Logits:
        """Feed token ids, return the last logits (V,), which the next step overwrites.

        `before` is called ahead of each chunk; if it raises, the row holds the chunks before.
        """
        rest = list(token_ids)
        while len(rest) > self._chunk_tokens:
            before()
            self._feed(rest[: self._chunk_tokens], [self._chunk_tokens - 1])
            rest = rest[self._chunk_tokens :]
        before()
        return np.asarray(self._feed(rest, [len(rest) - 1])[0])

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Feed some token ids in one call, return the logits after each, (T, V)."""
        return self._feed(token_ids, range(len(token_ids)))

    def rewind(self, length: int) -> int:
        """Go back to `length` tokens or a little less; return how many the row still holds."""
        # These differ where something was raised between a call and its note here.
        noted = int(self.state.lengths[0]) == self.length
        if length >= self.length and noted:
            return self.length
        self.copies = [copy for copy in self.copies if copy[0] <= length]
        reached, sums = length, self._empty
        if self._empty:
            reached, sums = self.copies[-1] if self.copies else (0, self._empty)
        self._graph.rewind(self.state, reached, sums)
        del self.token_ids[reached:]
        return reached

    def keep_sums(self) -> None:
        """Copy the sums here, so that the row can come back to this very position."""
        at = len(self.token_ids)
        if not self._empty or (self.copies and self.copies[-1][0] == at):
            return
        close = len(self.copies) > 1 and self.copies[-1][0] - self.copies[-2][0] < SUMS_EVERY
        if close:  # the last copy was wanted for a while only
            self.copies.pop()
        self.copies.append((at, self._graph.sums(self.state)))

    def fork(self) -> "Row":
        """Return another row that holds the same and goes its own way."""
        token_ids, arrays = self.dump()
        state = self._graph.resume(arrays, len(token_ids))
        return Row(
            self._graph, self._chunk_tokens, state=state, token_ids=token_ids, copies=self.copies
        )

    def dump(self) -> tuple[list[int], list[NDArray[Any]]]:
        """Copy text and state to host memory, the latter in the order of the manifest's states."""
        self.rewind(self.length)
        return list(self.token_ids), self._graph.dump(self.state)

    def _feed(self, token_ids: Sequence[int], wanted: Sequence[int]) -> NDArray[np.float32]:
        ids = np.asarray(token_ids, np.int64)[None]
        logits: NDArray[np.float32]
        logits = self._graph.run(self.state, ids, np.asarray(wanted, np.int64))[0]
        self.token_ids.extend(token_ids)
        last = self.copies[-1][0] if self.copies else 0
        if len(token_ids) > 1 or len(self.token_ids) - last >= SUMS_EVERY:
            self.keep_sums()
        return logits


class Rows(Generic[Member]):
    """Texts that are fed one token each in one pass.

    A pass needs all states side by side, so whoever joins or leaves costs a copy of all that stay:
    rows times capacity, where a token of a 120M model takes 25 kB. One text alone is not copied.

    Attributes:
        members: Who the rows are, in their order.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._state: State | None = None
        self._texts: dict[Member, tuple[list[int], list[tuple[int, Sums]]]] = {}
        self.members: list[Member] = []

    def join(self, rows: Mapping[Member, Row]) -> None:
        """Take rows in, which nobody may feed any more."""
        states = [row.state for row in rows.values()]
        if self._state is not None:
            states.insert(0, self._state)
        self._state = states[0] if len(states) == 1 else self._graph.together(states)
        self._texts |= {member: (row.token_ids, row.copies) for member, row in rows.items()}
        self.members += rows

    def step(self, token_ids: Sequence[int]) -> Sequence[Logits]:
        """Feed each row its next token, return the logits (B, V), overwritten by the next step."""
        assert self._state is not None, "there are rows"
        ids = np.asarray(token_ids, np.int64)[:, None]
        logits = self._graph.run(self._state, ids, np.asarray([0]))[:, 0]
        for member, token_id in zip(self.members, token_ids, strict=True):
            self._texts[member][0].append(token_id)
        return list(logits)

    def keep(self, members: Sequence[Member]) -> None:
        """Let go of all rows but these."""
        if list(members) == self.members:
            return
        places = [self.members.index(member) for member in members]
        self.members = list(members)
        self._texts = {member: self._texts[member] for member in members}
        state = self._state
        self._state = self._graph.some(state, places) if state is not None and places else None

    def copy(self, member: Member) -> Row:
        """Return a row of its own with what one of them holds."""
        assert self._state is not None, "there are rows"
        one = self._graph.some(self._state, [self.members.index(member)])
        token_ids, copies = self._texts[member]
        # Without the room that its neighbours need.
        state = self._graph.resume(self._graph.dump(one), len(token_ids))
        return Row(self._graph, state=state, token_ids=token_ids, copies=copies)


class RowsApart(Generic[Member]):
    """The same where a cache grows by itself, so that lengths may not differ: one by one.

    Attributes:
        members: Who the rows are, in their order.
    """

    def __init__(self) -> None:
        self._rows: dict[Member, Row] = {}
        self.members: list[Member] = []

    def join(self, rows: Mapping[Member, Row]) -> None:
        """Take rows in."""
        self._rows |= rows
        self.members += rows

    def step(self, token_ids: Sequence[int]) -> Sequence[Logits]:
        """Feed each row its next token, return the logits of each (V,)."""
        pairs = zip(self.members, token_ids, strict=True)
        return [self._rows[member].step([token_id]) for member, token_id in pairs]

    def keep(self, members: Sequence[Member]) -> None:
        """Let go of all rows but these."""
        self.members = list(members)
        self._rows = {member: self._rows[member] for member in members}

    def copy(self, member: Member) -> Row:
        """Return the row of one of them, which leaves next."""
        return self._rows[member]


class Watched:
    """A row that looks, before each chunk and each token, whether it should go on.

    Args:
        row: The row.
        check: Raises if it should not.
    """

    def __init__(self, row: Row, check: Callable[[], None]) -> None:
        self._row = row
        self._check = check
        self.keep_sums = row.keep_sums
        self.rewind = row.rewind

    @property
    def length(self) -> int:
        """How many tokens the row holds."""
        return self._row.length

    def step(self, token_ids: Sequence[int]) -> Logits:
        """See `Row.step`."""
        return self._row.step(token_ids, self._check)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """See `Row.score`."""
        self._check()
        return self._row.score(token_ids)
