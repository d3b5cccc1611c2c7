"""The routes as HTTP: who is let in, what is too much, and what is left when clients leave."""

import contextlib
import functools
import json
import signal
import socket
import threading
import time

import httpx
import pytest
from support.serve import serving, slowed, started, until
from support.tiny_bundle import TinyBundle

from wiola_runtime import GenerationError, load
from wiola_serve import wire
from wiola_serve.guard import Access
from wiola_serve.preparing import THREADS_OF_A_CLIENT

# Nothing is encrypted here, so that no certificates need be read.
get, post, options, stream = (
    functools.partial(getattr(httpx, verb), verify=False)
    for verb in ("get", "post", "options", "stream")
)
ASK = {"prompt": "It is", "max_tokens": 4}
ENDLESS = {"prompt": "It is", "max_tokens": 590, "ignore_eos": True}


@pytest.fixture(scope="module", params=["shared", "growing"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    with load(TinyBundle(cache=request.param).write(folder)) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(model):
    with serving(model, body_bytes=2000, tokens=590) as found:
        yield found


@pytest.fixture
def slow(model, monkeypatch):
    monkeypatch.setattr(model.engine.graph, "run", slowed(model.engine.graph, 0.01))


def ask(url, body=None, **extra):
    return post(f"{url}/v1/completions", json=body or ASK, timeout=30, **extra)


def error_of(response):
    assert response.headers["content-type"] == "application/json"
    (found,) = response.json().values()
    assert set(found) == {"message", "type", "param", "code"}
    return response.status_code, found["type"], found["message"]


def metric(url, name):
    lines = get(f"{url}/metrics").text.splitlines()
    found = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    return float(found[0])


def busy(url):
    health = get(f"{url}/health").json()
    return health["active_rows"], health["queue_length"]


def test_health_says_what_is_loaded_and_how_busy_it_is(url, model):
    health = get(f"{url}/health")

    assert health.status_code == 200
    assert health.json() == {
        "status": "ok", "model": "tiny", "weights": "trained", "device": "cpu",
        "decoding": "together" if model.manifest.cache == "shared" else "one row at a time",
        "active_rows": 0, "most_rows": 8, "queue_length": 0, "most_queued": 64,
    }  # fmt: skip


def test_the_model_has_a_card(url):
    (card,) = get(f"{url}/v1/models").json()["data"]

    assert card["id"] == "tiny"
    assert card["context_length"] == 600
    assert get(f"{url}/v1/models/tiny").json() == card


def test_metrics_count_what_was_done(url):
    before = metric(url, "wiola_generated_tokens_total")
    route = 'wiola_requests_total{route="%s",status="%s"}'
    ask(url)
    ask(url, {"prompt": "It is", "n": 3})
    get(f"{url}/some/thing")
    get(f"{url}/v1/models/tiny")

    assert metric(url, "wiola_generated_tokens_total") == before + 4
    assert metric(url, route % ("/v1/completions", 200)) >= 1
    assert metric(url, route % ("/v1/completions", 400)) >= 1
    assert metric(url, route % ("other", 404)) >= 1
    assert metric(url, route % ("/v1/models/{name}", 200)) >= 1
    assert metric(url, 'wiola_answers_total{ended_by="length"}') >= 1
    assert metric(url, "wiola_first_token_seconds_count") >= 1
    assert metric(url, "wiola_token_seconds_count") >= 3
    assert metric(url, 'wiola_request_seconds_count{route="/v1/completions"}') >= 2
    assert metric(url, "wiola_queue_length") == metric(url, "wiola_active_rows") == 0


def test_errors_are_objects_of_the_protocol(url):
    wrong = "invalid_request_error"

    routes = (
        "POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET /v1/models/{name}, "
        "GET /health, GET /metrics"
    )
    assert error_of(get(f"{url}/v2")) == (
        404, wrong, f"GET /v2: Not Found; expected one of {routes}",
    )  # fmt: skip
    assert error_of(post(f"{url}/v1/completions/", json=ASK))[0] == 404
    assert error_of(get(f"{url}/v1/completions"))[:2] == (405, wrong)
    assert error_of(ask(url, content=b"{", headers={"Content-Type": "application/json"}))[0] == 400
    long = {"prompt": "a" * 3000}
    assert error_of(ask(url, long)) == (
        413, wrong, "the body has more than 2000 bytes (--max-body); send less",
    )  # fmt: skip
    assert error_of(ask(url, {"prompt": "a", "max_tokens": 591})) == (
        400, wrong,
        "max_tokens is 591; expected at most 590, the limit of this server (--max-tokens)",
    )  # fmt: skip
    assert error_of(ask(url, {"prompt": [[1, "a"]]}))[0] == 400
    assert error_of(ask(url, {"prompt": [1, {}]}))[0] == 400
    assert error_of(ask(url, {"prompt": [10**30]}))[0] == 400
    assert error_of(ask(url, {"prompt": "a", "logit_bias": {"9999": 1}}))[2].startswith(
        "logit_bias names token 9999; expected ids below"
    )
    assert error_of(ask(url, {"prompt": ["a"] * 65}))[2] == (
        "prompt has 65 texts; expected at most 64 in a request"
    )


def test_errors_do_not_repeat_all_that_was_sent(url):
    for body in ({"max_tokens": 10**1700}, {"x" * 1700: 1}, {"model": "a b " * 400}):
        error = ask(url, {"prompt": "a"} | body).json()["error"]
        assert len(error["message"]) < 800
        assert len(error["param"]) < 100
    assert ask(url, {"prompt": "a", "max_tokens": 10**1700}).json()["error"]["message"] == (
        f"max_tokens is {10**39}...; expected at most 590, the limit of this server (--max-tokens)"
    )


def test_half_a_character_breaks_nothing(url):
    """JSON can spell a lone surrogate, which UTF-8 cannot."""
    for body in (b'{"prompt": "\\ud800"}', b'{"\\ud800": 1}', b'{"regex": "\\ud800"}'):
        refused = ask(url, content=body, headers={"Content-Type": "application/json"})
        assert error_of(refused)[0] == 400
        assert "surrogates not allowed" in refused.json()["error"]["message"]


def test_the_longest_answer_bounds_the_default_as_well(model):
    with serving(model, tokens=3) as url:
        assert (
            ask(url, {"prompt": "It", "ignore_eos": True}).json()["usage"]["completion_tokens"] == 3
        )


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_what_a_foreign_page_could_send_is_no_json(url, kind):
    headers = {"Content-Type": kind} if kind else {}
    response = post(f"{url}/v1/completions", content=json.dumps(ASK), headers=headers)

    assert error_of(response)[0] == 415


def test_a_local_server_wants_to_be_called_by_its_name(url):
    port = url.rpartition(":")[2]

    for name in ("localhost", "LOCALHOST.", "127.0.0.1", "127.0.0.2", "[::1]"):
        for host in (name, f"{name}:{port}"):
            assert get(f"{url}/health", headers={"Host": host}).status_code == 200
    for host in (
        "evil.example",
        "localhost.evil.example",
        "[::1].evil.example",
        "1.2.3.4",
        "[::2]",
    ):
        assert error_of(get(f"{url}/health", headers={"Host": host}))[0] == 421
    refused = get(f"{url}/health", headers={"Host": f"evil.example:{port}"})
    assert error_of(refused)[0] == 421
    assert "not 'evil.example'" in refused.json()["error"]["message"]


def test_a_key_opens_every_door_but_that_of_health(model):
    with serving(model, access=Access(key="gehéim")) as url:
        assert get(f"{url}/health", headers={"Host": "any.example"}).status_code == 200
        for path in ("/v1/models", "/metrics", "/none"):
            assert error_of(get(url + path))[0] == 401
        for wrong in ("Bearer geheim", "Basic gehéim", "gehéim", "Bearer"):
            headers = {"Authorization": wrong.encode()}
            assert error_of(get(f"{url}/v1/models", headers=headers))[0] == 401
        for right in ("Bearer gehéim", "bearer  gehéim"):
            headers = {"Authorization": right.encode()}
            assert get(f"{url}/v1/models", headers=headers).status_code == 200


def test_scripts_of_other_pages_are_let_in_by_name_only(model, url):
    preflight = {
        "Origin": "https://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    allowed = "access-control-allow-origin"

    assert allowed not in options(f"{url}/v1/completions", headers=preflight).headers
    with serving(model, access=Access(key="k", origins=("https://page.example",))) as open_url:
        answer = options(f"{open_url}/v1/completions", headers=preflight)
        assert answer.headers[allowed] == "https://page.example"
        other = preflight | {"Origin": "https://other.example"}
        assert allowed not in options(f"{open_url}/v1/completions", headers=other).headers


@pytest.mark.usefixtures("slow")
def test_an_answer_that_takes_too_long_is_an_error(model):
    with serving(model, seconds=2) as url:
        late = ask(url, ENDLESS)
        assert error_of(late) == (
            504, "server_error", "the answer was not there after 2 seconds; ask for fewer tokens",
        )  # fmt: skip
        assert late.headers["x-should-retry"] == "false"
        streamed = ask(url, {**ENDLESS, "stream": True})
        *pieces, last = [line for line in streamed.text.splitlines() if line]
        assert len(pieces) > 3
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        until(lambda: busy(url) == (0, 0))


@contextlib.contextmanager
def held(monkeypatch):
    """Let the preparation of prompts that say "hold" wait; yield how many do."""
    read, release, holding = wire.read_completion, threading.Event(), []

    def slow(body, name):
        if body["prompt"] == "hold":
            holding.append(1)
            release.wait(30)
        return read(body, name)

    monkeypatch.setattr("wiola_serve.wire.read_completion", slow)
    try:
        yield holding
    finally:
        release.set()


def test_preparing_a_prompt_counts_as_time(model, monkeypatch):
    with serving(model, seconds=1) as url, held(monkeypatch):
        for _ in range(3):
            late = ask(url, {"prompt": "hold"})
            assert error_of(late)[0] == 504
            assert late.elapsed.total_seconds() < 5


def test_a_client_that_leaves_while_its_prompt_is_prepared_is_noticed(model, monkeypatch):
    with serving(model) as url, held(monkeypatch):
        with contextlib.suppress(httpx.ReadTimeout):
            post(f"{url}/v1/completions", json={"prompt": "hold"}, timeout=0.2)
        name = 'wiola_requests_total{route="/v1/completions",status="499"}'
        until(lambda: name in get(f"{url}/metrics").text)


def test_a_client_whose_prompts_are_hard_to_prepare_holds_up_nobody_else(model, monkeypatch):
    other = httpx.HTTPTransport(local_address="127.0.0.9", verify=False)
    with serving(model, seconds=20) as url, held(monkeypatch) as holding:
        for _ in range(80):  # more than there are threads in any pool
            with contextlib.suppress(httpx.ReadTimeout):
                post(f"{url}/v1/completions", json={"prompt": "hold"}, timeout=0.02)
        with httpx.Client(transport=other) as client:
            assert client.post(f"{url}/v1/completions", json=ASK).status_code == 200
        assert len(holding) == THREADS_OF_A_CLIENT


def test_what_is_being_prepared_does_not_hold_up_the_end(model, monkeypatch, caplog):
    with held(monkeypatch) as holding:
        with serving(model, grace_seconds=0) as url:
            with contextlib.suppress(httpx.ReadTimeout):
                post(f"{url}/v1/completions", json={"prompt": "hold"}, timeout=0.5)
        assert holding
    assert caplog.text == ""


def test_a_body_that_does_not_come_is_an_error(model):
    with serving(model, seconds=1) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert sock.recv(1000).startswith(b"HTTP/1.1 408")


def is_over(sock):
    """Wait for the end of a connection; return how it was told."""
    sock.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: loc",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        b"POST /none HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
def test_connections_without_a_request_end(model, sent):
    with serving(model, seconds=1, connections=3) as url:
        place = url.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(socket.create_connection(place)) for _ in range(3)]
            for sock in socks:
                sock.sendall(sent)
            assert all(map(is_over, socks))
            assert ask(url).status_code == 200


def test_connections_with_requests_stay(model):
    with serving(model, seconds=1) as url, httpx.Client(verify=False) as client:
        streams = set()
        for _ in range(10):
            answer = client.get(f"{url}/health")
            streams.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            time.sleep(0.25)
        assert len(streams) == 1


@pytest.mark.parametrize(("sent", "status"), [(1, b"408"), (5000, b"413")])
def test_a_body_without_end_is_not_read_on(model, monkeypatch, sent, status):
    monkeypatch.setattr("wiola_serve.exchange.DISCARDED_BYTES", 2000)
    with serving(model, seconds=1, body_bytes=2000) as url:
        with socket.create_connection(url.removeprefix("http://").split(":")) as sock:
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"%x\r\n%s\r\n" % (sent, b"a" * sent)
            )
            answer = sock.recv(1000)
            began = time.monotonic()
            assert is_over(sock)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in answer
    assert time.monotonic() - began < 3


def test_who_sends_too_much_before_reading_gets_the_answer(url):
    body = b"x" * 4_000_000
    answer = ask(url, content=body, headers={"Content-Type": "application/json"})

    assert error_of(answer)[0] == 413


def test_an_answer_that_cannot_be_kept_to_is_the_requests_fault(url, monkeypatch):
    def fail(*_):
        raise GenerationError("the reply cannot keep to its schema")

    monkeypatch.setattr("wiola_runtime.reply.Reply.pick", property(lambda _: fail))
    answer = ask(url)

    assert error_of(answer) == (422, "invalid_request_error", "the reply cannot keep to its schema")
    assert answer.headers["x-should-retry"] == "false"


def test_a_client_that_leaves_while_it_writes_is_forgotten(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
    name = 'wiola_requests_total{route="/v1/completions",status="499"}'
    until(lambda: name in get(f"{url}/metrics").text)


@pytest.mark.usefixtures("slow")
def test_a_client_that_leaves_a_stream_ends_the_work_on_it(url):
    with stream("POST", f"{url}/v1/completions", json={**ENDLESS, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert busy(url) == (1, 0)
    until(lambda: busy(url) == (0, 0))


@pytest.mark.usefixtures("slow")
def test_clients_that_leave_before_an_answer_end_the_work_and_free_the_queue(model):
    with serving(model, rows=1) as url:
        for _ in range(3):
            with contextlib.suppress(httpx.ReadTimeout):
                post(f"{url}/v1/completions", json=ENDLESS, timeout=0.2)
        until(lambda: busy(url) == (0, 0))
        assert metric(url, 'wiola_requests_total{route="/v1/completions",status="499"}') == 3


def test_a_client_that_does_not_read_is_left_alone_in_the_end(model, monkeypatch):
    """Its answer waits in memory, no longer than the time limit; the others go on."""
    monkeypatch.setattr("wiola_serve.stream.LAST_WORDS_SECONDS", 0.2)
    monkeypatch.setattr(
        "wiola_serve.answers.event", lambda _: b"data: " + b"x" * 1_000_000 + b"\n\n"
    )
    with serving(model, seconds=3) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({**ENDLESS, "stream": True}).encode()
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            until(lambda: busy(url) == (1, 0) or metric(url, "wiola_generated_tokens_total"))
            assert ask(url).status_code == 200
            until(lambda: busy(url) == (0, 0))
            name = 'wiola_requests_total{route="/v1/completions",status="200"}'
            until(lambda: metric(url, name) == 2)


@pytest.mark.usefixtures("slow")
def test_too_many_connections_are_turned_away(model):
    with serving(model, connections=2) as url:
        with stream("POST", f"{url}/v1/completions", json={**ENDLESS, "stream": True}):
            with httpx.Client(verify=False) as second, httpx.Client(verify=False) as third:
                assert second.get(f"{url}/health").status_code == 200
                assert third.get(f"{url}/health").status_code == 503


def test_a_bug_gets_an_answer_and_a_traceback(model, monkeypatch, capsys):
    monkeypatch.setattr("wiola_serve.wire.read_completion", lambda *_: 1 / 0)
    with serving(model) as url:
        assert error_of(ask(url)) == (500, "server_error", "the server has a bug; see its log")
        assert metric(url, 'wiola_requests_total{route="/v1/completions",status="500"}') == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_script_can_read_what_a_bug_is_answered_with(model, monkeypatch):
    monkeypatch.setattr("wiola_serve.wire.read_completion", lambda *_: 1 / 0)
    page = "https://page.example"
    with serving(model, access=Access(origins=(page,))) as url:
        answer = ask(url, headers={"Origin": page})
        assert answer.status_code == 500
        assert answer.headers["access-control-allow-origin"] == page


def test_a_worker_that_has_died_ends_the_server(model, monkeypatch):
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr("wiola_serve.scheduler.Scheduler._turn", lambda _: 1 / 0)
    monkeypatch.setattr("wiola_serve.server.Server.on_tick", never)
    failed = (500, "server_error", "the server has failed; see its log")
    with started(model) as (_, url):
        assert error_of(ask(url)) == failed
        health = get(f"{url}/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert error_of(ask(url)) == failed
        monkeypatch.undo()
        until(lambda: refuses(url))


async def never(*_):
    return False


def refuses(url):
    try:
        return not get(url)
    except httpx.TransportError:
        return True


@pytest.mark.usefixtures("slow")
def test_answers_that_run_when_the_server_is_stopped_are_finished(model):
    with serving(model, grace_seconds=20) as url:
        streaming = stream(
            "POST", f"{url}/v1/completions", json={**ENDLESS, "max_tokens": 40, "stream": True}
        )
        answer = streaming.__enter__()
        lines = answer.iter_lines()
        next(lines)
    assert list(lines)[-2:] == ["data: [DONE]", ""]
    streaming.__exit__(None, None, None)


@pytest.mark.usefixtures("slow")
def test_answers_that_take_longer_get_an_error(model):
    began = time.monotonic()
    with serving(model, grace_seconds=0) as url:
        streaming = stream("POST", f"{url}/v1/completions", json={**ENDLESS, "stream": True})
        answer = streaming.__enter__()
        lines = answer.iter_lines()
        next(lines)
    last = [line for line in lines if line][-1]
    assert "the server is stopping" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert time.monotonic() - began < 20
    streaming.__exit__(None, None, None)


@pytest.mark.usefixtures("slow")
def test_a_second_signal_does_not_wait_for_them(model):
    with started(model, grace_seconds=3600) as (server, url):
        with stream("POST", f"{url}/v1/completions", json={**ENDLESS, "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.handle_exit(signal.SIGINT, None)
            server.handle_exit(signal.SIGTERM, None)
            last = [line for line in lines if line][-1]
    assert "the server is stopping" in json.loads(last.removeprefix("data: "))["error"]["message"]
