"""The help texts, as a user reads them."""

import pytest

from wiola_export.cli import main


@pytest.mark.parametrize("command", ["", "inspect", "verify", "report", "study"])
def test_help(command, golden, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "96")

    assert main([*command.split(), "--help"]) == 0

    golden(f"help{'_' * bool(command)}{command}.txt", capsys.readouterr().out)
