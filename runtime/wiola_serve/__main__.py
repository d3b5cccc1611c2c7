"""The command `wiola-serve`, and `python -m wiola_serve`: its imports can be interrupted too."""

import sys

from wiola_run.interrupts import INTERRUPTED, held


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        with held():
            from wiola_serve import cli  # noqa: PLC0415  it takes half a second
        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
