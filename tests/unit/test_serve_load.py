"""Many clients at once: no answer is lost or mixed up, and nothing is left behind."""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.holdings import MEASURE
from support.serve import CHAT, serving, until
from support.tiny_bundle import TinyBundle

from wiola_runtime import load

CLIENTS, EACH = 8, 20
TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. " * 5
MIB = 1 << 20


@pytest.fixture(scope="module", params=["shared", "growing"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    with load(TinyBundle(cache=request.param, eos_ids=(7, 30)).write(folder)) as opened:
        yield opened


def asked(number):
    """Return a request unlike all others: prompt, length, draw, stop, penalty."""
    dice = random.Random(number)
    start = dice.randrange(100)
    body = {"prompt": TEXT[start : start + dice.choice([3, 20, 60, 300])]}
    body |= {"max_tokens": dice.randrange(1, 24), "seed": number}
    body["temperature"] = dice.choice([0, 0.7, 1.2])
    body["repetition_penalty"] = dice.choice([1, 1.3])
    return body | ({"stop": dice.choice("aeiou")} if dice.random() < 0.3 else {})


def reference(model, number):
    body = asked(number)
    prompt, tokens = body.pop("prompt"), body.pop("max_tokens")
    return model.generate(prompt, max_new_tokens=tokens, **body).text


def whole(client, url, body):
    answer = client.post(f"{url}/v1/completions", json=body, timeout=60)
    return answer.json()["choices"][0]["text"]


def streamed(client, url, body):
    with client.stream(
        "POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=60
    ) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def test_every_answer_under_load_is_what_it_is_alone(model):
    numbers = range(CLIENTS * EACH)
    references = [reference(model, number) for number in numbers]

    def use(client_number):
        with httpx.Client(verify=False) as client:
            found = {}
            for number in numbers[client_number::CLIENTS]:
                send = streamed if number % 3 == 0 else whole
                found[number] = send(client, url, asked(number))
            return found

    with serving(model, rows=5) as url, ThreadPoolExecutor(CLIENTS) as pool:
        found = {}
        for part in pool.map(use, range(CLIENTS)):
            found |= part
        health = httpx.get(f"{url}/health", verify=False).json()

    assert [found[number] for number in numbers] == references
    assert (health["active_rows"], health["queue_length"]) == (0, 0)


def test_clients_that_leave_disturb_nobody(model):
    """Every second one leaves its stream after a few pieces."""
    numbers = range(60)
    references = [reference(model, number) for number in numbers]

    def use(number):
        with httpx.Client(verify=False) as client:
            if number % 2:
                return whole(client, url, asked(number))
            endless = asked(number) | {"max_tokens": 400, "ignore_eos": True, "stream": True}
            with client.stream("POST", f"{url}/v1/completions", json=endless) as answer:
                lines = answer.iter_lines()
                for _ in range(number % 5):
                    next(lines)
            return None

    with serving(model, rows=4) as url, ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(use, numbers))

        def is_idle():
            health = httpx.get(f"{url}/health", verify=False).json()
            return (health["active_rows"], health["queue_length"]) == (0, 0)

        until(is_idle)

    assert found[1::2] == references[1::2]


USE = """
sys.path.insert(0, sys.argv[2])
from concurrent.futures import ThreadPoolExecutor
import httpx
from support.serve import serving, until
import wiola_runtime as wr

def use(number):
    prompt = "It is a truth universally acknowledged, " * (1 + number % 4) + str(number)
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
    with httpx.Client(base_url=url, verify=False) as client:
        if number % 3 == 0:
            client.post("/v1/chat/completions", json=chat).raise_for_status()
        elif number % 3 == 1:
            body = {"prompt": [prompt, "It"], "max_tokens": 12, "logprobs": 2}
            client.post("/v1/completions", json=body).raise_for_status()
        else:
            body = chat | {"stream": True, "max_tokens": 200}
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_lines())

def idle():
    health = httpx.get(url + "/health", verify=False).json()
    return health["active_rows"] == health["queue_length"] == 0

with wr.load(sys.argv[1]) as model, serving(model) as url, ThreadPoolExecutor(8) as pool:
    list(pool.map(use, range(150)))
    until(idle)
    before = memory(), files()
    list(pool.map(use, range(600)))
    until(idle)
    print(memory() - before[0], files() - before[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs /proc")
def test_600_requests_leave_nothing_behind(tmp_path):
    """Whole ones, streams that are left, chats whose state is kept: its bound is reached before."""
    folder = TinyBundle(chat=CHAT).write(tmp_path / "b")
    tests = str(Path(__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", MEASURE + USE, folder, tests],
        check=True,
        capture_output=True,
        text=True,
    )
    memory, files = map(int, found.stdout.split())

    assert memory < 12 * MIB
    assert files <= 2  # a connection may be about to close
