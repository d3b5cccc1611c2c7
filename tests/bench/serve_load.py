"""Tokens a second that `wiola-serve` makes for 1, 4 and 8 clients at once: medians of some rounds.

    python tests/bench/serve_load.py BUNDLE [--max-rows N] [--tokens N] [--requests N] [--rounds N]

Every client sends one request after the other; prompts differ, answers have one length.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

PROMPT = "It is a truth universally acknowledged, that a single man in possession of number "


@contextlib.contextmanager
def running(bundle, *options):
    """Start the server at a free port; yield its address."""
    command = [sys.executable, "-m", "wiola_serve.cli", bundle, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().split()[2]
        process.terminate()


def use(url, client, requests, tokens):
    """Send some requests, one after the other."""
    for number in range(requests):
        body = {"prompt": f"{PROMPT}{client}, {number}", "max_tokens": tokens, "ignore_eos": True}
        body |= {"temperature": 0.8, "seed": number}
        request = urllib.request.Request(
            f"{url}/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == tokens


def tokens_per_second(url, clients, requests, tokens):
    """Let clients work at the same time; return what they get together."""
    threads = [
        threading.Thread(target=use, args=(url, client, requests, tokens))
        for client in range(clients)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients * requests * tokens / (time.perf_counter() - began)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--max-rows", default="8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    rates = {clients: [] for clients in (1, 4, 8)}
    with running(chosen.bundle, "--max-rows", chosen.max_rows) as url:
        tokens_per_second(url, 1, 2, 16)  # warm
        for _ in range(chosen.rounds):  # interleaved, so that a busy machine is fair to all
            for clients, found in rates.items():
                found.append(tokens_per_second(url, clients, chosen.requests, chosen.tokens))
    alone = statistics.median(rates[1])
    for clients, found in rates.items():
        rate = statistics.median(found)
        print(f"{clients} clients: {rate:6.0f} tokens/s, {rate / alone:.2f} times one client's")


if __name__ == "__main__":
    main()
