"""What `wiola-run --help` lists, word for word."""

import pytest

from wiola_run.cli import main


def test_run_help(golden, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "98")
    monkeypatch.setenv("NO_COLOR", "1")

    with pytest.raises(SystemExit) as leaving:
        main(["--help"])

    # Where the usage above is wrapped depends on the version of Python.
    usage, blank, listed = capsys.readouterr().out.partition("\n\n")
    assert (leaving.value.code, blank) == (0, "\n\n")
    assert usage.startswith("usage: wiola-run [-h] [--prompt TEXT | --self-test]")
    golden("help_run.txt", listed)
