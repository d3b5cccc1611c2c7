"""Continue a prompt with a bundle; made to be frozen into a program of its own."""

import argparse
import sys
from pathlib import Path

import wiola_runtime as wr


def main() -> int:
    """Stream a reply; return 2 where the user can mend what was wrong."""
    parser = argparse.ArgumentParser(prog="complete", description=__doc__)
    parser.add_argument("bundle", type=Path, help="folder that wiola-export wrote")
    parser.add_argument("prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N")
    arguments = parser.parse_args()
    try:
        with wr.load(arguments.bundle) as model:
            for piece in model.stream(arguments.prompt, max_new_tokens=arguments.max_new_tokens):
                print(piece.text, end="", flush=True)
    except wr.WiolaRuntimeError as error:
        print(f"complete: error: {error}", file=sys.stderr)
        return 2
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
