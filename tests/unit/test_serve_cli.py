"""`wiola-serve` as a user runs it: what it prints, how it starts, and how it is stopped."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest
from support.tiny_bundle import TinyBundle

from wiola_serve.__main__ import main as command
from wiola_serve.cli import main
from wiola_serve.guard import is_loopback
from wiola_serve.metrics import Metrics
from wiola_serve.scheduler import Scheduler
from wiola_serve.server import listening, url_of

COMMAND = [sys.executable, "-m", "wiola_serve"]
PATIENCE_SECONDS = 60
ENDLESS = {"prompt": "It is", "max_tokens": 590, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return TinyBundle().write(tmp_path_factory.mktemp("bundle") / "tiny")


@contextlib.contextmanager
def running(bundle, *options, command=COMMAND, **environment):
    """Start the command at a free port; yield process and address, end it at last."""
    process = subprocess.Popen(
        [*command, bundle, "--port", "0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
    )  # fmt: skip
    try:
        with process:
            line = process.stdout.readline()
            assert line.startswith("tiny at http://"), process.stderr.read()
            yield process, line.split()[2]
            process.kill()
    finally:
        process.kill()


def opened(url, body=None, **headers):
    content = None if body is None else json.dumps(body).encode()
    headers |= {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=content, headers=headers)
    return urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)


def failed(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("wiola-serve: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("wiola-serve: error: ").rstrip("\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_and_stops_quietly(bundle, number):
    with running(bundle) as (process, url):
        with opened(f"{url}/completions", {"prompt": "It", "max_tokens": 3}) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (out, err, process.returncode) == ("", "", 0)


def test_it_stops_quietly_while_clients_wait(bundle):
    """Streams, waiting prompts and idle connections at once: each ends with an error, or well."""
    ends = []

    def use(url):
        try:
            with opened(f"{url}/completions", ENDLESS) as answer:
                ends.append(answer.read().decode().rstrip().rpartition("data: ")[2])
        except urllib.error.HTTPError as error:
            ends.append(error.read().decode())

    with running(bundle, "--max-rows", "2", "--grace", "0") as (process, url):
        # Which is slow enough on any machine, because there is work for all of them.
        clients = [threading.Thread(target=use, args=(url,)) for _ in range(12)]
        for client in clients:
            client.start()
        health = url.replace("/v1", "/health")
        while json.load(opened(health))["active_rows"] < 2:
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        for client in clients:
            client.join(PATIENCE_SECONDS)

    assert (err, process.returncode) == ("", 0)
    assert len(ends) == 12
    assert {"the server is stopping" in end or end == "[DONE]" for end in ends} == {True}
    assert any("the server is stopping" in end for end in ends)


def test_a_second_signal_does_not_wait_for_running_answers(bundle):
    with running(bundle, "--grace", "3600") as (process, url):
        # Their work is more than the test has time for.
        streams = [opened(f"{url}/completions", ENDLESS) for _ in range(8)]
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        ends = [stream.read().decode().rstrip().rpartition("data: ")[2] for stream in streams]
        for stream in streams:
            stream.close()

    assert (err, process.returncode) == ("", 0)
    assert all("the server is stopping" in end or end == "[DONE]" for end in ends)


def test_clients_that_do_nothing_are_cut_off_without_a_traceback(bundle):
    with running(bundle, "--grace", "0") as (process, url):
        host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            opened(url.replace("/v1", "/health")).close()  # the request is there by now
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 0
    assert "Traceback" not in err


def test_a_bug_in_decoding_ends_it_with_a_traceback_and_a_code(bundle):
    """So that a supervisor starts it again."""
    code = (
        "import sys; from wiola_serve import cli; from wiola_serve.scheduler import Scheduler; "
        "Scheduler._turn = lambda _: 1 / 0; sys.exit(cli.main())"
    )
    with running(bundle, command=[sys.executable, "-c", code]) as (process, url):
        with pytest.raises(urllib.error.HTTPError, match="500"):
            opened(f"{url}/completions", {"prompt": "It", "max_tokens": 3})
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (out, process.returncode) == ("", 1)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_key_from_the_environment(bundle):
    with running(bundle, WIOLA_API_KEY=" secret\n") as (_, url):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            opened(f"{url}/models")
        with opened(f"{url}/models", Authorization="Bearer secret") as answer:
            assert json.load(answer)["data"][0]["id"] == "tiny"


def test_a_server_for_everyone_warns(bundle):
    with running(bundle, "--host", "0.0.0.0") as (process, url):
        port = url.removesuffix("/v1").rpartition(":")[2]
        with opened(f"http://127.0.0.1:{port}/health", Host="some.example") as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert err == (
        "wiola-serve: warning: who reaches 0.0.0.0 may use this server; set WIOLA_API_KEY to a "
        "secret\n"
    )


def test_random_weights_are_announced(tmp_path):
    folder = TinyBundle(weights="random").write(tmp_path / "b")
    with running(folder, "--host", "::1") as (process, url):
        assert url.startswith("http://[::1]:")
        with opened(f"{url}/models") as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert "THE WEIGHTS OF THIS BUNDLE ARE RANDOM" in err


def test_what_is_wrong_is_said_in_one_line(capsys, bundle, tmp_path, monkeypatch):
    with listening("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert failed(capsys, bundle, "--port", port).startswith(
            f"cannot listen at 127.0.0.1, port {port}: [Errno"
        )
    assert failed(capsys, bundle, "--port", 99999) == "--port is 99999; expected 0 to 65535"
    assert "no.such.host.example" in failed(capsys, bundle, "--host", "no.such.host.example")
    assert failed(capsys, bundle, "--max-rows", 0) == "--max-rows is 0; expected at least 1"
    assert failed(capsys, bundle, "--timeout", "nan") == "--timeout is nan; expected at least 1"
    assert "manifest.json" in failed(capsys, tmp_path, "--port", 0)
    assert failed(capsys, bundle, "--api-key", " ").startswith("the API key is empty; give one")
    monkeypatch.setenv("WIOLA_API_KEY", "")
    assert failed(capsys, bundle).startswith("the API key is empty")
    monkeypatch.setenv("WIOLA_API_KEY", "\udcff")
    assert failed(capsys, bundle) == "the API key is no UTF-8; choose another"


@pytest.mark.parametrize("absent", ["starlette", "uvicorn", "prometheus_client"])
def test_what_is_not_installed_is_an_instruction(capsys, bundle, monkeypatch, absent):
    for name in [*sys.modules]:
        if name.partition(".")[0] in (absent, "wiola_serve") and name != "wiola_serve.cli":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)

    assert failed(capsys, bundle) == (
        f"{absent} is not installed; run: pip install 'wiola-runtime[server]'"
    )


def test_any_other_absence_is_a_bug(bundle, monkeypatch):
    monkeypatch.delitem(sys.modules, "wiola_serve.server", raising=False)
    monkeypatch.setitem(sys.modules, "wiola_serve.guard", None)

    with pytest.raises(ModuleNotFoundError, match=r"wiola_serve\.guard"):
        main([str(bundle)])


@pytest.fixture
def handlers():
    """Put back what heard the signals before."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_server_can_hear_is_not_lost(bundle, monkeypatch, capsys, number):
    """Served in this process; what a server raises again when it has stopped does no harm."""
    start = Scheduler.start

    def signalled(scheduler):
        signal.raise_signal(number)
        start(scheduler)

    monkeypatch.setattr(Scheduler, "start", signalled)
    assert main([str(bundle), "--port", "0", "--threads", "1"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("handlers")
def test_the_line_is_printed_when_signals_are_heard(bundle, monkeypatch):
    heard = []

    def hear(line, **_):
        heard.append((line.partition("127")[0], signal.getsignal(signal.SIGTERM).__name__))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("builtins.print", hear)
    assert main([str(bundle), "--port", "0", "--threads", "1"]) == 0
    assert heard == [("tiny at http://", "handle_exit")]


def test_a_warning_and_a_box_come_before_the_first_request(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("wiola_serve.server.Server.run_on", lambda *_: True)
    folder = TinyBundle(weights="random").write(tmp_path / "b")

    assert main([str(folder), "--port", "0", "--host", "0.0.0.0", "--allow-origin", "a://b"]) == 0
    assert main([str(folder), "--port", "0", "--host", "0.0.0.0", "--api-key", "k"]) == 0

    err = capsys.readouterr().err
    assert err.count("THE WEIGHTS OF THIS BUNDLE ARE RANDOM") == 2
    assert err.count("wiola-serve: warning: who reaches 0.0.0.0 may use this server") == 1


def test_without_metadata_the_version_says_so(monkeypatch, capsys):
    def absent(_name):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == "wiola-serve (run from its sources)\n"


def test_an_interrupt_while_it_loads(monkeypatch, bundle):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("wiola_serve.cli.open_model", interrupted)
    monkeypatch.setattr(sys, "argv", ["wiola-serve", str(bundle), "--port", "0"])

    assert command() == 130


def test_an_interrupt_while_it_is_imported(monkeypatch):
    class Interrupting:
        def find_spec(self, name, *_):
            if name == "wiola_serve.cli":
                raise KeyboardInterrupt

    monkeypatch.delattr("wiola_serve.cli")
    monkeypatch.delitem(sys.modules, "wiola_serve.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])

    assert command() == 130


def test_the_command_line_is_light():
    code = "import sys, wiola_serve.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    roots = {name.partition(".")[0] for name in done.stdout.split()}
    assert roots & {"starlette", "uvicorn", "prometheus_client", "onnxruntime", "anyio"} == set()


def test_help_and_version(capsys):
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as ended:
            main([option])
        assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "default: 127.0.0.1, this machine" in out
    assert "default: 1048576" in out


@pytest.mark.parametrize("origin", ["foo", "foo.example", "https://a.example/", "https://", "null"])
def test_an_origin_is_a_scheme_and_a_host(capsys, bundle, origin):
    with pytest.raises(SystemExit):
        main([str(bundle), "--allow-origin", origin])
    assert f"'{origin}' is no origin; expected scheme://host[:port]" in capsys.readouterr().err


def test_the_document_forgets_no_option_and_no_metric(capsys):
    document = (Path(__file__).parents[2] / "docs/server.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--version"}
    metrics = set(re.findall(r"^# TYPE (\w+)", Metrics().page().decode(), flags=re.MULTILINE))

    assert len(options) == 16
    assert {option for option in options if f"`{option}`" not in document} == set()
    assert {name for name in metrics if f"`{name}`" not in document} == {
        name for name in metrics if name.endswith("_created")
    }


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("localhost", True),
        ("LocalHost.", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("a.b", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_the_rest(host, local):
    assert is_loopback(host) == local


def test_an_address_of_version_6_has_brackets():
    with listening("::1", 0) as sock:
        assert url_of(sock).startswith("http://[::1]:")
