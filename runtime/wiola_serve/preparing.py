"""What comes before the queue: tokenizers, templates and grammars, on threads of their own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Made = TypeVar("Made")
MOST_THREADS = 64
THREADS_OF_A_CLIENT = 2


class Preparations:
    """Work that nothing can stop: a client has two threads for it at most.

    Where a request is over before, its work keeps the place until it is done: nobody gets more
    threads by giving up.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MOST_THREADS, "wiola-prepare")
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._going: set[asyncio.Future[Any]] = set()

    async def run(self, client: str, work: Callable[[], Made]) -> Made:
        """Return what some work of a client makes, in its turn."""
        place = self._places.setdefault(client, asyncio.Semaphore(THREADS_OF_A_CLIENT))
        await place.acquire()
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        self._going.add(future)
        future.add_done_callback(self._going.discard)
        future.add_done_callback(lambda _: place.release())
        return await asyncio.shield(future)

    def stop(self) -> None:
        """Forget all work, on its loop: what is begun ends unheard."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for future in self._going:
            future.cancel()
