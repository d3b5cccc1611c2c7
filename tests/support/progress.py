"""Watchers of a task: one that remembers, one that interrupts."""

from collections.abc import Iterable, Iterator


class Recording:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.warnings: list[str] = []
        self.items = self.total = 0

    def stage(self, title: str) -> None:
        self.stages.append(title)

    def track(self, items: Iterable, total: int) -> Iterator:
        self.total = total
        for item in items:
            self.items += 1
            yield item

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class Interrupting(Recording):
    """Raises what Ctrl-C raises, at the start of a stage or before an item."""

    def __init__(self, stage: int | None = None, item: int | None = None) -> None:
        super().__init__()
        self._stage = stage
        self._item = item

    def stage(self, title: str) -> None:
        if len(self.stages) == self._stage:
            raise KeyboardInterrupt
        super().stage(title)

    def track(self, items: Iterable, total: int) -> Iterator:
        for item in super().track(items, total):
            if self.items - 1 == self._item:
                raise KeyboardInterrupt
            yield item
