"""What a task shows on the terminal while it runs; all of it goes to stderr."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from wiola_export.progress import Item, Progress, Silent

# In a pipe a stage is a line, and one every few seconds while it lasts.
LINE_SECONDS = 5.0


@contextlib.contextmanager
def watching(*, quiet: bool) -> Iterator[Progress]:
    """Yield a progress for this terminal, pipe, or silence."""
    console = Console(stderr=True)
    if quiet:
        yield Silent()
    elif console.is_terminal:
        with _bars(console) as bars:
            shown = Bars(bars)
            yield shown
            shown.finish()
    else:
        yield Lines()


def announce(message: str, title: str) -> None:
    """Show a notice that cannot be missed, whatever else is silent."""
    Console(stderr=True).print(Panel(message, title=title, border_style="bold red"))


class Bars:
    """A spinner for the stage, and a bar where its length is known."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def stage(self, title: str) -> None:
        """Finish the bar of the last stage and start another."""
        self.finish()
        self._task = self._bars.add_task(title, total=None)

    def track(self, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Advance the bar by one for each item."""
        task = self._task if self._task is not None else self._bars.add_task("", total=None)
        self._bars.update(task, total=total)
        for item in items:
            yield item
            self._bars.advance(task)

    def warn(self, message: str) -> None:
        """Print above the bars."""
        line = Text.assemble(("warning: ", "bold yellow"), message)
        self._bars.console.print(line)

    def finish(self) -> None:
        """Mark the stage as done; one that failed is left as it was."""
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1)


class Lines:
    """Plain lines with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._title = ""

    def stage(self, title: str) -> None:
        """Print the title."""
        self._title = title
        self._print(title)

    def track(self, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Print how many are done, now and then."""
        last = time.monotonic()
        for count, item in enumerate(items, start=1):
            yield item
            if time.monotonic() - last > LINE_SECONDS and count < total:
                last = time.monotonic()
                self._print(f"{self._title}: {count} of {total}")

    def warn(self, message: str) -> None:
        """Print the message."""
        self._print(f"warning: {message}")

    def _print(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        print(f"[{seconds:6.1f} s] {text}", file=sys.stderr, flush=True)  # noqa: T201


def _bars(console: Console) -> RichProgress:
    return RichProgress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
    )
