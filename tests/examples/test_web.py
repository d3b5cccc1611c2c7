"""The page computes in a browser what the formulas do, and its server serves nothing else."""

import http.client
import signal
import socket
import subprocess
import sys

import pytest
from support import languages, page_server, process
from support.tiny_bundle import TinyBundle


@pytest.fixture(scope="module")
def demo_portable(tmp_path_factory):
    """Export the demo for any ONNX Runtime, as a user does."""
    languages.program(*page_server.BROWSERS, needs="web")
    folder = tmp_path_factory.mktemp("demo") / "demo-portable"
    options = ["--variant", "demo", "--int4", "--target", "portable", "--calibration", "none"]
    done = process.run(*options, "--no-report", "--out", folder)
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.mark.parametrize("cache", ["shared", "growing"])
def test_the_page_gives_what_the_formulas_say(cache, tmp_path):
    bundle = languages.write_tested(TinyBundle(cache=cache), tmp_path / "b")

    result = page_server.self_test_in_browser(bundle, tmp_path / "profile")

    golden = languages.read_golden(bundle)
    assert result["mismatch"] is None
    assert result["tokenIds"] == golden["token_ids"]
    assert result["maxDifference"] <= golden["tolerance"]


def test_the_page_gives_the_demos_golden_tokens(demo_portable, tmp_path):
    result = page_server.self_test_in_browser(demo_portable, tmp_path / "profile")

    assert result["mismatch"] is None
    assert result["maxDifference"] <= languages.read_golden(demo_portable)["tolerance"]


def test_the_page_refuses_other_weights(tmp_path):
    bundle = languages.write_tested(TinyBundle(), tmp_path / "b")
    path = bundle / "model.onnx.data"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])

    result = page_server.self_test_in_browser(bundle, tmp_path / "profile")

    assert result == {"mismatch": "model.onnx.data is not the file that was exported"}


def fetch(port, path):
    """Ask for a path as it is written; return status, type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_server_says_what_a_browser_must_know(tmp_path):
    bundle = TinyBundle().write(tmp_path / "b")
    with page_server.serving(bundle) as (port, _):
        module, _ = fetch(port, "/node/decoder.mjs")
        weights, body = fetch(port, "/bundle/model.onnx.data")

    assert module.headers["Content-Type"] == "text/javascript"
    assert module.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert module.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert module.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert weights.status == 200
    assert body == (bundle / "model.onnx.data").read_bytes()


@pytest.mark.parametrize(
    "path", ["/bundle/../secret.txt", "/../../../secret.txt", "/bundle/%2e%2e/secret.txt"]
)
def test_the_server_stays_in_its_folders(path, tmp_path):
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    bundle = TinyBundle().write(tmp_path / "b")
    with page_server.serving(bundle) as (port, _):
        answer, body = fetch(port, path)

    assert answer.status == 404
    assert b"secret" not in body.replace(path.encode(), b"")


def start_server(*arguments):
    """Start the example's server as a user does; its output is text."""
    command = [sys.executable, "-X", "utf8", languages.EXAMPLES / "web/serve.py", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )


def refusal(*arguments):
    """Return the one line by which the server ends."""
    with start_server(*arguments) as process:
        output, errors = process.communicate(timeout=languages.PATIENCE)
    assert (process.returncode, output, errors.count("\n")) == (2, "", 1)
    return errors.removeprefix("serve.py: error: ")


@pytest.mark.skipif(sys.platform == "win32", reason="there, Ctrl-C reaches the whole console")
def test_the_server_says_where_it_is_and_ends_quietly(tmp_path):
    bundle = TinyBundle().write(tmp_path / "b")
    with start_server(bundle, "--port", "0") as process:
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=languages.PATIENCE)

    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/web/\n")
    assert (process.returncode, output, errors) == (0, "", "")


def test_the_server_refuses_a_folder_that_is_no_bundle(tmp_path):
    expected = f"{tmp_path / 'manifest.json'} not found; is {tmp_path} an exported bundle?\n"

    assert refusal(tmp_path) == expected


def test_the_server_refuses_a_port_that_it_cannot_have(tmp_path):
    bundle = TinyBundle().write(tmp_path / "b")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = refusal(bundle, "--port", port)

    assert found.startswith(f"port {port} cannot be taken (")
    assert found.endswith("; give another with --port\n")
    assert refusal(bundle, "--port", "70000").startswith("port 70000 cannot be taken (")


def test_a_client_that_leaves_is_no_error(tmp_path):
    class Handler(page_server.load_serve().PageHandler):
        bundle = TinyBundle().write(tmp_path / "b")

    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"GET /bundle/model.onnx.data HTTP/1.0\r\n\r\n")
        theirs.close()

        Handler(ours, ("127.0.0.1", 0), None)  # answers at once, and raises what goes wrong
