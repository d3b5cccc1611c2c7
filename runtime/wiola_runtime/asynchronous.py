"""A stream for asyncio: the work is done on a thread, the event loop stays free."""

import contextlib
from collections.abc import AsyncGenerator, Generator

from wiola_runtime.cancel import Cancellation
from wiola_runtime.reply import Piece


async def pieces(
    stream: Generator[Piece, None, None], cancel: Cancellation
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a stream; leaving early cancels it, and waits until it has ended."""
    import asyncio  # noqa: PLC0415  it takes a tenth of a second, and few need it

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Piece | None] = asyncio.Queue()

    def put(item: Piece | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so is the reader
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        try:
            with contextlib.closing(stream):
                for piece in stream:
                    put(piece)
        finally:
            put(None)

    running = loop.run_in_executor(None, work)
    try:
        while (item := await queue.get()) is not None:
            yield item
    finally:
        cancel.cancel()
        await asyncio.shield(running)  # raises what the work has raised
