"""A request with the prompts it has sent: news come in, and it may end in three ways.

Either all prompts are answered, or the time is up, or the client has left; the last two end the
preparation of the prompts, and are news like all others later.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from wiola_serve.job import Job, News
from wiola_serve.limits import Limits
from wiola_serve.refusal import CLIENT_LEFT, REQUEST_TIMEOUT, TOO_LARGE, TOO_SLOW, Refusal
from wiola_serve.scheduler import Scheduler

Made = TypeVar("Made")
# Who sends all before reading would not see the answer if the rest were not taken.
DISCARDED_BYTES = 8 << 20


class Exchange:
    """The asyncio side of some jobs.

    Args:
        request: Its body may not have been read yet.
        scheduler: Works on the jobs.
        limits: How long request and answer may take.
    """

    def __init__(self, request: Request, scheduler: Scheduler, limits: Limits) -> None:
        self._request = request
        self._scheduler = scheduler
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[tuple[int, News]] = asyncio.Queue()
        self._over: asyncio.Future[Refusal] = self._loop.create_future()
        self._jobs: Sequence[Job] = ()
        self._watch: asyncio.Task[None] | None = None
        late = Refusal(
            f"the answer was not there after {limits.seconds:g} seconds; ask for fewer tokens",
            status=TOO_SLOW,
            code="timeout",
        )
        self.deadline = self._loop.time() + limits.seconds
        self._timer = self._loop.call_at(self.deadline, self._fail, late)

    async def body(self) -> bytes:
        """Read the request's body.

        Raises:
            Refusal: It is too long, takes too long, or the client has left.
        """
        most, content, size = self._limits.body_bytes, bytearray(), 0
        try:
            async with asyncio.timeout_at(self.deadline):
                async for part in self._request.stream():
                    size += len(part)
                    if size <= most:
                        content += part
                    elif size > most + DISCARDED_BYTES:
                        break
        except TimeoutError as error:
            raise Refusal("the body took too long", status=REQUEST_TIMEOUT) from error
        except ClientDisconnect as error:
            raise Refusal("the client has left", status=CLIENT_LEFT) from error
        if size > most:
            found = f"the body has more than {most} bytes (--max-body); send less"
            raise Refusal(found, status=TOO_LARGE)
        return bytes(content)

    def listener(self, index: int) -> Callable[[News], object]:
        """Return what takes the news of one prompt, on any thread."""

        def listen(news: News) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and so is the client
                self._loop.call_soon_threadsafe(self._news.put_nowait, (index, news))

        return listen

    async def wait_for(self, work: Awaitable[Made]) -> Made:
        """Return what comes of some work that follows the body, and watch the client from here on.

        Raises:
            Refusal: The time is up, or the client has left.
        """
        self._watch = asyncio.create_task(self._until_left())
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()  # which does nothing to one that is done
        if not task.done():
            raise self._over.result()
        return task.result()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Send prompts to the scheduler.

        Raises:
            Refusal: There is no room for them.
        """
        self._scheduler.submit(jobs)
        self._jobs = jobs

    async def news(self) -> AsyncIterator[tuple[int, News]]:
        """Yield the news of all prompts, each with the prompt's place, until all have ended.

        Raises:
            Refusal: An answer has failed, the time is up, or the client has left.
        """
        going = len(self._jobs)
        while going:
            index, news = await self._news.get()
            if news.failure is not None:
                raise news.failure
            going -= news.result is not None
            yield index, news

    def close(self) -> None:
        """Let go of everything; what is still worked on ends within a token."""
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self._scheduler.cancel(self._jobs)

    async def _until_left(self) -> None:
        await self._request.receive()  # after the body there is but one message: http.disconnect
        self._fail(Refusal("the client has left", status=CLIENT_LEFT))

    def _fail(self, failure: Refusal) -> None:
        if not self._over.done():
            self._over.set_result(failure)
        self._news.put_nowait((0, News(failure=failure)))
