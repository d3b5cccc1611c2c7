"""What a long task tells whoever watches it."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Progress(Protocol):
    """Watches the stages of a task."""

    def stage(self, title: str) -> None:
        """Start a stage."""
        ...

    def track(self, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Yield items of the current stage, showing how many of `total` are done."""
        ...

    def warn(self, message: str) -> None:
        """Show a message that should not be missed."""
        ...


class Silent:
    """Shows nothing."""

    def stage(self, title: str) -> None:
        """Ignore the stage."""

    def track(self, items: Iterable[Item], total: int) -> Iterator[Item]:  # noqa: ARG002
        """Pass the items on."""
        yield from items

    def warn(self, message: str) -> None:
        """Ignore the message."""
