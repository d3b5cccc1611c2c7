"""Tokens a second that `wiola-serve` makes for 1, 4 and 8 clients at once: medians of some rounds.

    python tests/bench/serve_load.py BUNDLE [--max-rows N] [--tokens N] [--requests N] [--rounds N]

Every client sends one request after the other; prompts differ, answers have one length. On Linux
the second figure is per second of the server's processor, which a busy machine leaves as it is.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

PROMPT = "It is a truth universally acknowledged, that a single man in possession of number "


@contextlib.contextmanager
def running(bundle, *options):
    """Start the server at a free port; yield its address."""
    command = [sys.executable, "-m", "wiola_serve", bundle, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().split()[2], process.pid
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


def processor_seconds(pid):
    """Return the processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(url, pid, clients, requests, tokens):
    """Let clients work at the same time; return tokens per second of the clock, the processor."""
    threads = [
        threading.Thread(target=use, args=(url, client, requests, tokens))
        for client in range(clients)
    ]
    began, used = time.perf_counter(), processor_seconds(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = clients * requests * tokens
    return made / (time.perf_counter() - began), made / (processor_seconds(pid) - used)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--max-rows", default="8")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    rates = {clients: [] for clients in (1, 4, 8)}
    options = ("--max-rows", chosen.max_rows, "--threads", chosen.threads)
    with running(chosen.bundle, *options) as (url, pid):
        measured(url, pid, 1, 2, 16)  # warm
        for _ in range(chosen.rounds):  # interleaved, so that a busy machine is fair to all
            for clients, found in rates.items():
                found.append(measured(url, pid, clients, chosen.requests, chosen.tokens))
    for which, name in enumerate(("clock", "processor")):
        medians = {
            clients: statistics.median(pair[which] for pair in found)
            for clients, found in rates.items()
        }
        for clients, rate in medians.items():
            print(f"{name}, {clients} clients: {rate:6.0f} tokens/s, {rate / medians[1]:.2f}x")


if __name__ == "__main__":
    main()
