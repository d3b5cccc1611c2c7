"""The command `wiola-run`, apart from the package so that its imports can be interrupted too."""

INTERRUPTED = 130


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from wiola_runtime import cli  # noqa: PLC0415  it takes half a second

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED
