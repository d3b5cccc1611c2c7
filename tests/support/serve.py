"""A server on loopback, on a thread of the test's own process."""

import contextlib
import threading
import time

from wiola_runtime.manifest import ChatSpec
from wiola_serve import server
from wiola_serve.guard import Access
from wiola_serve.limits import Limits

PATIENCE_SECONDS = 30
CHAT = ChatSpec(
    template=None,
    roles={"system": "<unk>", "user": "<pad>", "assistant": "<eos>"},
    turn_end="<|end|>",
)


@contextlib.contextmanager
def serving(model, **options):
    """Serve a model at a free port; yield where."""
    with started(model, **options) as (_, url):
        yield url


@contextlib.contextmanager
def started(model, *, access=None, **limits):
    """Serve a model at a free port; yield the server and where it is."""
    sock = server.listening("127.0.0.1", 0)
    one = server.Server(model, Limits(**limits), access or Access())
    thread = threading.Thread(target=one.run_on, args=(sock,))
    thread.start()
    try:
        yield one, server.url_of(sock)
    finally:
        one.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def until(condition):
    """Wait for something that happens on another thread."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def slowed(graph, seconds):
    """Let every pass of a graph take longer; return what is called in its place."""
    run = graph.run

    def slow(*arguments):
        time.sleep(seconds)
        return run(*arguments)

    return slow
