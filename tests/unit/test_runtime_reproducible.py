"""The same choice gives the same reply: whatever else runs, ran before, or stands beside it."""

import json
import subprocess
import sys
import threading

import pytest
from support.tiny_bundle import TinyBundle

from wiola_runtime import Cancellation, load
from wiola_runtime.manifest import ChatSpec

PROMPTS = ["It is a truth", "man", "must be in want of a wife", "日本"]
DRAWN = {"temperature": 1.0, "top_p": 0.95, "seed": 11, "max_new_tokens": 24}
CHOICES = (
    {"max_new_tokens": 24},
    DRAWN,
    DRAWN | {"top_k": 40, "min_p": 0.01},
    DRAWN | {"typical_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    DRAWN | {"regex": "[a-z ]{10,40}"},
    DRAWN | {"draft_tokens": 4},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return TinyBundle().write(tmp_path_factory.mktemp("reproducible") / "b")


@pytest.fixture(scope="module")
def model(folder):
    with load(folder, threads=1) as opened:
        yield opened


@pytest.mark.parametrize("choice", CHOICES)
def test_ten_replies_are_one(model, choice):
    assert len({model.generate(PROMPTS[0], **choice).token_ids for _ in range(10)}) == 1


@pytest.mark.parametrize("choice", CHOICES)
def test_another_reply_that_draws_meanwhile_changes_nothing(model, choice):
    """Piece by piece in turns, and on threads of their own."""
    alone = model.generate(PROMPTS[0], **choice)
    other = model.stream(PROMPTS[1], temperature=1.0, seed=11, max_new_tokens=60)
    text = ""
    for piece in model.stream(PROMPTS[0], **choice):
        next(other, None)
        text += piece.text
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(model.generate(PROMPTS[0], **choice)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert text == alone.text
    assert {result.token_ids for result in found} == {alone.token_ids}


@pytest.mark.parametrize("choice", [c for c in CHOICES if "draft_tokens" not in c])
def test_the_order_of_a_batch_changes_nothing(model, choice):
    alone = {prompt: model.generate(prompt, **choice).token_ids for prompt in PROMPTS}

    for order in (PROMPTS, PROMPTS[::-1], PROMPTS[2:] + PROMPTS[:1]):
        together = model.generate(list(order), **choice)
        assert [result.token_ids for result in together] == [alone[p] for p in order]


def test_the_number_of_threads_changes_nothing(folder, model):
    with load(folder, threads=2) as other:
        for choice in CHOICES:
            one, two = (m.generate(PROMPTS[0], **choice) for m in (model, other))
            assert one.token_ids == two.token_ids


AGAIN = """
import json, sys
from wiola_runtime import load
prompt, choices = json.loads(sys.argv[2])
with load(sys.argv[1], threads=1) as model:
    print(json.dumps([model.generate(prompt, **choice).token_ids for choice in choices]))
"""


def test_another_process_gives_the_same(folder, model):
    given = json.dumps([PROMPTS[0], CHOICES])
    command = [sys.executable, "-c", AGAIN, folder, given]

    done = subprocess.run(command, check=True, capture_output=True)

    here = [list(model.generate(PROMPTS[0], **choice).token_ids) for choice in CHOICES]
    assert json.loads(done.stdout) == here


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("back", [0, 1, 5, 13])
def test_a_reply_after_going_back_is_that_to_the_same_text(model, choice, back):
    """What penalties and grammars remember goes back too."""
    ids = model.tokenizer.encode("It is a truth universally acknowledged, that")[: 13 + 4]
    conversation = model.session()
    conversation.generate(ids[:9], **choice)
    conversation.rewind(min(back, conversation.token_count))
    kept = list(conversation.token_ids)

    result = conversation.generate(ids[9:], **choice)

    assert result.token_ids == model.generate([*kept, *ids[9:]], **choice).token_ids


def test_a_cancelled_reply_that_kept_to_a_grammar_leaves_no_trace(model):
    conversation = model.session()
    cancel = Cancellation()
    stream = conversation.stream("It is", regex="(ab){30}", cancel=cancel)
    begun = next(stream).text + next(stream).text
    cancel.cancel()
    result = list(stream)[-1].result

    assert result.finish_reason == "cancelled"
    assert result.text != "ab" * 30
    assert ("ab" * 30).startswith(begun)
    assert conversation.generate(regex="cd", max_new_tokens=9).text == "cd"


NETWORK = """
import sys
seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith("socket.") else None)
import wiola_run.cli, wiola_runtime
with wiola_runtime.load(sys.argv[1]) as model:
    model.generate("It is", max_new_tokens=4, regex="[ab]{9}")
    model.chat([{"role": "user", "content": "It is"}], max_new_tokens=2)
print(seen)
"""


def test_no_socket_is_opened(tmp_path):
    spec = ChatSpec(template="{{ messages[0].content }}", roles={}, turn_end=None)
    folder = TinyBundle(chat=spec).write(tmp_path / "b")

    done = subprocess.run(
        [sys.executable, "-c", NETWORK, folder], check=True, capture_output=True, text=True
    )

    assert done.stdout == "[]\n"


MEMORY = """
import resource, sys
import wiola_runtime

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

with wiola_runtime.load(sys.argv[1], threads=1) as model:
    model.generate("It is", max_new_tokens=1)
    before = peak()
    sessions = [model.session() for _ in range(20)]
    for session in sessions:
        session.generate("It is", max_new_tokens=8)
    print((peak() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_a_long_context_costs_nothing_until_it_is_used(tmp_path):
    """Twenty caches for all of it would be 320 MiB."""
    folder = TinyBundle(context_length=131072).write(tmp_path / "b")

    done = subprocess.run(
        [sys.executable, "-c", MEMORY, folder], check=True, capture_output=True, text=True
    )

    assert float(done.stdout) < 32
