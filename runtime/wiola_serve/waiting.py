"""Prompts that wait for a row: each client has a queue, and the clients take turns."""

from collections import deque
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class Waiting(Generic[Entry]):
    """A queue for each client; within one, first come, first served.

    So a client with a hundred prompts holds up another's single one for one turn.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Entry]] = {}  # the client whose turn it is comes first

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def push(self, client: str, entry: Entry) -> None:
        """Put an entry at the end of a client's queue."""
        self._queues.setdefault(client, deque()).append(entry)

    def pop(self) -> Entry:
        """Take the first entry of the client whose turn it is."""
        client = next(iter(self._queues))
        queue = self._queues.pop(client)
        entry = queue.popleft()
        if queue:
            self._queues[client] = queue  # behind all others
        return entry

    def remove(self, entry: Entry) -> None:
        """Take an entry out, wherever it is; one that is not there is no mistake."""
        for client, queue in list(self._queues.items()):
            if entry in queue:
                queue.remove(entry)
            if not queue:
                del self._queues[client]
