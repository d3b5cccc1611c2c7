"""Listen, serve, and stop without leaving anyone without an answer."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from wiola_runtime import DeviceError, Model
from wiola_serve.app import application
from wiola_serve.guard import Access
from wiola_serve.idle import Idle
from wiola_serve.limits import Limits
from wiola_serve.metrics import Metrics
from wiola_serve.preparing import Preparations
from wiola_serve.scheduler import Scheduler
from wiola_serve.service import Service

# After the running answers have had their time: for the last errors to be written.
CLOSING_SECONDS = 5
TICKS_OF_A_SECOND = 10  # of uvicorn
MOST_PORTS = 65535


def listening(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one.

    Raises:
        DeviceError: The address cannot be had.
    """
    if not 0 <= port <= MOST_PORTS:
        raise DeviceError(f"--port is {port}; expected 0 to {MOST_PORTS}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise DeviceError(f"cannot listen at {host}, port {port}: {error}") from error


def url_of(sock: socket.socket) -> str:
    """Return where a server that listens here is found."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A server for one model.

    Args:
        model: Opened; it stays open.
        limits: What may be asked of it.
        access: Who may ask.
    """

    def __init__(self, model: Model, limits: Limits, access: Access) -> None:
        metrics = Metrics()
        self._scheduler = Scheduler(model.engine, limits, metrics)
        self._grace_seconds = limits.grace_seconds
        self._idle = Idle(limits.seconds)
        self._ready: Callable[[], object] = bool
        self._preparations = Preparations()
        service = Service(model, self._scheduler, self._preparations, limits, metrics)
        super().__init__(
            uvicorn.Config(
                application(service, metrics, access),
                http="h11",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.connections + 1,  # it counts the one that asks
                timeout_graceful_shutdown=int(limits.grace_seconds) + CLOSING_SECONDS,
            )
        )

    def run_on(self, sock: socket.socket, ready: Callable[[], object] = bool) -> bool:
        """Serve until a signal comes and all answers have ended; return whether it was no bug.

        Args:
            sock: Listens.
            ready: Is called once requests are answered and signals heard.
        """
        self._ready = ready
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED_SIGNALS:  # uvicorn hears them later, and raises them in the end
                signal.signal(number, self.handle_exit)
        self._scheduler.start()
        try:
            self.run(sockets=[sock])
        finally:
            self._scheduler.stop()
        return self._scheduler.status != "failed"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so; not where a signal came first."""
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Tell whether to stop: nobody is served any more where the scheduler's thread has died."""
        if counter % TICKS_OF_A_SECOND == 0:
            self._idle.end(self.server_state.connections)
        return await super().on_tick(counter) or self._scheduler.status != "ok"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests; what is not answered in time gets an error."""
        loop = asyncio.get_running_loop()
        ending = loop.call_later(self._grace_seconds, self._scheduler.end)
        await super().shutdown(sockets)
        ending.cancel()
        self._preparations.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, at once at the second."""
        if self.should_exit:
            self._scheduler.end()
        else:
            super().handle_exit(sig, frame)
