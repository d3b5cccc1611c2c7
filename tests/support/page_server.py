"""The page of the web example in front of a real browser."""

import contextlib
import importlib.util
import json
import queue
import subprocess
import threading
from http import server

from support import languages

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def load_serve():
    """Import the example's server, which is a script beside its page."""
    path = languages.EXAMPLES / "web/serve.py"
    spec = importlib.util.spec_from_file_location("serve_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def serving(folder):
    """Serve the page and a bundle; yield the port and a queue of what the page posts."""
    posted = queue.SimpleQueue()

    class Handler(load_serve().PageHandler):
        bundle = folder

        def do_POST(self):  # noqa: N802 - the name that http.server calls
            posted.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(server.HTTPStatus.NO_CONTENT)
            self.end_headers()

        def log_message(self, *_):
            pass

    with server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield served.server_port, posted
        finally:
            served.shutdown()
            thread.join()


def self_test_in_browser(bundle, profile):
    """Open the page in a browser with an empty profile; return what its self-test posts."""
    browser = languages.program(*BROWSERS, needs="web")
    with serving(bundle) as (port, posted):
        address = f"http://127.0.0.1:{port}/web/?self-test&threads=1"
        command = [browser, *FLAGS, f"--user-data-dir={profile}", address]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **quiet) as running:
            try:
                return posted.get(timeout=languages.PATIENCE)
            finally:
                running.terminate()
