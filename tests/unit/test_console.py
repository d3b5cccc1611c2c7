"""Progress: bars on a terminal, plain lines in a pipe, nothing when quiet."""

import io

from rich.console import Console

from wiola_export import console
from wiola_export.console import Bars, Lines, watching
from wiola_export.progress import Silent


def test_lines_name_each_stage_and_pass_the_items_on(capsys):
    lines = Lines()

    lines.stage("writing weights")
    lines.warn("no end token")

    assert list(lines.track("abc", 3)) == ["a", "b", "c"]
    err = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in err] == ["writing weights", "warning: no end token"]


def test_a_long_stage_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", -1.0)
    lines = Lines()
    lines.stage("writing weights")

    list(lines.track("abc", 3))

    err = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in err[1:]] == [
        "writing weights: 1 of 3", "writing weights: 2 of 3",
    ]  # fmt: skip


def test_bars_show_the_stages_on_a_terminal():
    screen = Console(force_terminal=True, file=io.StringIO(), width=80)
    with console._bars(screen) as progress:
        bars = Bars(progress)
        bars.stage("tracing")
        bars.stage("writing weights")
        assert list(bars.track(range(4), 4)) == [0, 1, 2, 3]
        bars.warn("no end token")

    shown = screen.file.getvalue()
    assert "tracing" in shown
    assert "writing weights" in shown
    assert "no end token" in shown
    assert [task.finished for task in progress.tasks] == [True, True]


def test_the_last_bar_is_finished_only_when_asked():
    with console._bars(Console(force_terminal=True, file=io.StringIO())) as progress:
        bars = Bars(progress)
        bars.stage("recording the self-test")
        before = progress.tasks[0].finished
        bars.finish()

    assert (before, progress.tasks[0].finished) == (False, True)


def test_brackets_of_a_warning_are_shown():
    screen = Console(force_terminal=True, file=io.StringIO(), width=80)
    with console._bars(screen) as progress:
        Bars(progress).warn("[bold] is in the name of the folder")

    assert "[bold] is in the name" in screen.file.getvalue()


def test_quiet_is_silent_and_a_pipe_gets_lines():
    with watching(quiet=True) as progress:
        assert isinstance(progress, Silent)
        assert list(progress.track("ab", 2)) == ["a", "b"]
    with watching(quiet=False) as progress:
        assert isinstance(progress, Lines)
