"""What one client, or all together, may ask of the server."""

import dataclasses

from wiola_runtime import GenerationError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the server's work and memory.

    Attributes:
        body_bytes: Longest body of a request.
        tokens: Longest answer; None leaves it to the context.
        rows: Answers that are worked on at the same time.
        queue: Prompts that wait for a row; beyond that a client is told to come back later.
        seconds: Time for a request, from its arrival to its last token.
        connections: Open connections.
        conversations: Finished chat answers whose state is kept for the next turn.
        grace_seconds: Time that running answers get when the server is stopped.
    """

    body_bytes: int = 1 << 20
    tokens: int | None = None
    rows: int = 8
    queue: int = 64
    seconds: float = 300.0
    connections: int = 256
    conversations: int = 4
    grace_seconds: float = 10.0

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            GenerationError: One is out of its range.
        """
        smallest = {"conversations": 0, "grace_seconds": 0, "body_bytes": 64}
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), smallest.get(field.name, 1)
            if value is not None and not least <= value < float("inf"):
                raise GenerationError(f"{field.name} is {value}; expected at least {least}")
