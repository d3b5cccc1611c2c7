"""The states of finished chat answers, so that the next turn computes only what is new."""

from collections.abc import Sequence

from wiola_runtime.row import Row

# Fewer tokens are read again sooner than their state is copied.
WORTH_A_COPY = 16


class Kept:
    """Rows of the last answers, each with its client: what another wrote is never told by speed.

    A row takes the memory of its cache, at most that of a full context.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: list[tuple[str, Row]] = []  # the last one used comes last

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, client: str, row: Row) -> None:
        """Keep a row in place of those whose text it continues, or of the oldest."""
        self._rows = [
            (owner, old)
            for owner, old in self._rows
            if owner != client or old.shares(row.token_ids) < old.length
        ]
        self._rows.append((client, row))
        del self._rows[: -self._most or None]

    def find(self, client: str, token_ids: Sequence[int]) -> Row | None:
        """Return a copy of the row that has most in common with a text, cut to that."""
        mine = [place for place in self._rows if place[0] == client]
        if not mine:
            return None
        best = max(mine, key=lambda place: place[1].shares(token_ids))
        shared = min(best[1].shares(token_ids), len(token_ids) - 1)
        if shared < WORTH_A_COPY:
            return None
        self._rows.sort(key=lambda place: place is best)
        row = best[1].fork()
        row.rewind(shared)
        return row
