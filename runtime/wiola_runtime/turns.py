"""The text of a conversation as token ids, in turns of which the oldest may be forgotten."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(slots=True)
class Turns:
    """A text that grows turn by turn.

    Attributes:
        token_ids: All of it.
        starts: Where each turn begins.
        first_id: The token that stands at the beginning of every text, if there is one: it is
            never forgotten.
    """

    token_ids: list[int]
    starts: list[int]
    first_id: int | None

    @property
    def lasting(self) -> list[int]:
        """What stays however much is forgotten."""
        return self.token_ids[:1] if self.token_ids[:1] == [self.first_id] else []

    def add(self, token_ids: Sequence[int]) -> None:
        """Begin a turn."""
        self.starts.append(len(self.token_ids))
        self.token_ids.extend(token_ids)

    def cut(self, length: int) -> None:
        """Keep the first tokens only."""
        del self.token_ids[length:]
        self.starts = [start for start in self.starts if start < length]

    def forget(self) -> bool:
        """Drop the oldest turn, if it is not the only one; return whether it was dropped."""
        if len(self.starts) < 2:  # noqa: PLR2004  a turn remains
            return False
        lasting, second = self.lasting, self.starts[1]
        self.token_ids = lasting + self.token_ids[second:]
        dropped = second - len(lasting)
        self.starts = [0, *(start - dropped for start in self.starts[2:])]
        return True

    def shorten(self, most: int) -> None:
        """Forget the oldest turns until at most so many tokens are left, or one turn."""
        while len(self.token_ids) > most and self.forget():
            pass

    def copy(self) -> "Turns":
        """Return another text that is the same."""
        return Turns(list(self.token_ids), list(self.starts), self.first_id)
