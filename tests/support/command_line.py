"""`wiola-export` as a test calls it."""

from wiola_export.cli import main

PREFIX = "wiola-export: error: "


def refused(capsys, *arguments):
    """Run a command that must fail; return its one line without the program's name."""
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(PREFIX)
    return err.removeprefix(PREFIX).rstrip("\n")
