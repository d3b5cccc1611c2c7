"""Streams for asyncio: the same pieces, and leaving the loop ends the work."""

import asyncio
import time

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_runtime import GenerationError, load
from wiola_runtime.manifest import ChatSpec

IDS = np.random.default_rng(3).integers(5, vocab_size(), 400).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with load(TinyBundle().write(tmp_path_factory.mktemp("bundle") / "tiny")) as opened:
        yield opened


async def collected(stream):
    return [piece async for piece in stream]


def test_the_pieces_are_those_of_a_stream(model):
    expected = list(model.stream(IDS[:9], max_new_tokens=20))

    found = asyncio.run(collected(model.astream(IDS[:9], max_new_tokens=20)))

    assert [piece.text for piece in found] == [piece.text for piece in expected]
    assert found[-1].result.token_ids == expected[-1].result.token_ids


def test_a_chat_is_answered_as_by_stream_chat(tmp_path):
    roles = {"user": "<pad>", "assistant": "<eos>"}
    chat = ChatSpec(template=None, roles=roles, turn_end="<|end|>")
    messages = [{"role": "user", "content": "a truth"}]
    with load(TinyBundle(chat=chat, eos_ids=()).write(tmp_path / "b")) as model:
        expected = list(model.session().stream_chat(messages, max_new_tokens=8))
        stream = model.session().astream_chat(messages, max_new_tokens=8)

        found = asyncio.run(collected(stream))

    assert [piece.text for piece in found] == [piece.text for piece in expected]


def test_several_streams_at_once_do_not_mix(model):
    async def all_of_them():
        streams = [model.astream(IDS[i : i + 9], max_new_tokens=15) for i in range(0, 54, 9)]
        return await asyncio.gather(*map(collected, streams))

    found = asyncio.run(all_of_them())

    for index, pieces in enumerate(found):
        prompt = IDS[index * 9 : index * 9 + 9]
        alone = model.generate(prompt, max_new_tokens=15)
        assert pieces[-1].result.token_ids == alone.token_ids


def test_leaving_the_loop_ends_the_work_and_frees_the_session(model):
    conversation = model.session()

    async def first_piece():
        stream = conversation.astream(IDS[:9], max_new_tokens=500)
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(first_piece())

    assert 9 < conversation.token_count < 200
    conversation.append(IDS[:3])


def test_a_cancelled_task_ends_the_work(model):
    conversation = model.session()

    async def cancelled():
        begun = asyncio.Event()

        async def read():
            async for _ in conversation.astream(IDS[:9], max_new_tokens=500):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())

    assert conversation.token_count < 500
    conversation.append(IDS[:3])


def test_errors_come_to_the_reader(model, monkeypatch):
    with pytest.raises(GenerationError, match="temperature is -1"):
        model.astream(IDS[:9], temperature=-1)

    conversation = model.session()
    conversation.append(IDS[:9])
    stream = conversation.astream(max_new_tokens=5)
    monkeypatch.setattr(type(model._engine.graph), "run", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(collected(stream))


def test_the_event_loop_stays_free(model):
    ticks = []

    async def both():
        async def tick():
            while True:
                ticks.append(time.perf_counter())
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        await collected(model.astream(IDS[:9], max_new_tokens=300))
        ticking.cancel()

    asyncio.run(both())

    assert len(ticks) > 3
