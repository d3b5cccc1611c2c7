"""Serve the page and one bundle to browsers on this machine alone.

python serve.py BUNDLE [--port 8000]
"""

import argparse
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


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="folder that wiola-export wrote")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    PageHandler.bundle = arguments.bundle
    with server.ThreadingHTTPServer(("127.0.0.1", arguments.port), PageHandler) as served:
        print(f"http://127.0.0.1:{served.server_port}/web/")
        served.serve_forever()


if __name__ == "__main__":
    main()
