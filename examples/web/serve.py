"""Serve the page and one bundle to browsers on this machine alone.

python serve.py BUNDLE [--port 8080]
"""

import argparse
import contextlib
import sys
from http import server
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]
BUNDLE_PATH = "/bundle/"
HEADERS = {
    # A page that is isolated from other origins may use threads.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    # Nothing comes from elsewhere, and the browser sees to it.
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src data:"
    ),
    "Cache-Control": "no-cache",
}


class PageHandler(server.SimpleHTTPRequestHandler):
    """The folder `examples` at /, the bundle's at /bundle/."""

    bundle: Path
    extensions_map = server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def handle(self) -> None:
        """Answer; a client that leaves meanwhile is no error."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def translate_path(self, path: str) -> str:
        """Map a request to a file."""
        in_bundle = path.startswith(BUNDLE_PATH)
        self.directory = str(self.bundle if in_bundle else EXAMPLES)
        return super().translate_path(path[len(BUNDLE_PATH) - 1 :] if in_bundle else path)

    def end_headers(self) -> None:
        """Add what every answer carries."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()


def main() -> int:
    """Serve until interrupted; return 2 where the user can mend what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="folder that wiola-export wrote")
    parser.add_argument(
        "--port", type=int, default=8080, help="default: %(default)s; 0: a free one"
    )
    arguments = parser.parse_args()
    manifest = arguments.bundle / "manifest.json"
    if not manifest.is_file():
        message = f"{manifest} not found; is {arguments.bundle} an exported bundle?"
        parser.exit(2, f"{parser.prog}: error: {message}\n")
    PageHandler.bundle = arguments.bundle
    try:
        served = server.ThreadingHTTPServer(("127.0.0.1", arguments.port), PageHandler)
    except (OSError, OverflowError) as error:
        message = f"port {arguments.port} cannot be taken ({error}); give another with --port"
        parser.exit(2, f"{parser.prog}: error: {message}\n")
    with served, contextlib.suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{served.server_port}/web/", flush=True)
        served.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
