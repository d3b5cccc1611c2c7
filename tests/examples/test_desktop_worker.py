"""The side of the desktop example that owns the model; here in the thread of the test."""

import pytest
from support.desktop import application
from support.tiny_bundle import TinyBundle

# isort: split
import wiola_runtime as wr
from conversation import Conversation
from wiola_runtime.manifest import ChatSpec
from worker import Request, Worker

CHAT = ChatSpec(
    template=None,
    roles={"system": "<unk>", "user": "<pad>", "assistant": "<eos>"},
    turn_end="<|end|>",
)


class Listener:
    """A worker, and everything that it has said."""

    def __init__(self):
        application()
        self.heard = []
        self.worker = Worker("cpu")
        for name in ("loaded", "load_failed", "progressed", "answered", "answer_failed"):
            getattr(self.worker, name).connect(lambda what, name=name: self._hear(name, what))
        self.on_progress = lambda _: None

    def _hear(self, name, what):
        self.heard.append((name, what))
        if name == "progressed":
            self.on_progress(what)

    def all(self, name):
        return [what for heard, what in self.heard if heard == name]

    def answer(self, conversation, **choices):
        request = {"temperature": 0.0, "max_new_tokens": 8, "cancel": wr.Cancellation()} | choices
        self.worker.answer(Request(conversation=conversation, **request))
        name, what = self.heard[-1]
        return what if name == "answered" else pytest.fail(f"{name}: {what}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return TinyBundle(chat=CHAT).write(tmp_path_factory.mktemp("b") / "chat")


@pytest.fixture
def listener(folder):
    listener = Listener()
    listener.worker.load(folder)
    return listener


def begun(mode):
    return Conversation(bundle="", name="tiny", mode=mode)


def test_a_bundle_is_described_once_it_is_open(listener, folder):
    (opened,) = listener.all("loaded")

    with wr.load(folder) as model:
        assert opened.fingerprint == model.manifest.fingerprint
        assert (opened.name, opened.precision, opened.provider) == ("tiny", "fp32", model.provider)
        assert (opened.context_length, opened.is_random, opened.no_chat) == (600, False, None)
        assert opened.defaults == model.defaults


def test_why_a_bundle_cannot_chat_is_said(tmp_path):
    listener = Listener()
    listener.worker.load(TinyBundle(weights="random").write(tmp_path / "b"))

    (opened,) = listener.all("loaded")
    assert opened.no_chat.startswith("bundle tiny has no chat format: ")
    assert opened.is_random


def test_a_folder_that_is_no_bundle_is_told_and_the_one_before_stays(listener, tmp_path):
    listener.worker.load(tmp_path)

    (message,) = listener.all("load_failed")
    assert message.endswith(f"is {tmp_path} an exported bundle?")
    assert listener.answer(begun("text").with_turn("user", "It is")).text


def test_a_failure_that_nobody_foresaw_ends_the_wait_too(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise OSError("the disk is on fire")

    monkeypatch.setattr(wr, "load", broken)
    listener = Listener()
    with pytest.raises(OSError, match="on fire"):  # Qt prints it and goes on
        listener.worker.load(tmp_path)

    assert listener.all("load_failed") == [
        "loading the bundle failed unexpectedly; the terminal tells more"
    ]


def test_a_chat_is_answered_as_the_runtime_answers_it(listener, folder):
    said = begun("chat").with_turn("user", "It is")
    with wr.load(folder) as model:
        expected = model.chat(said.messages(), max_new_tokens=8)

    answer = listener.answer(said)

    assert answer.text == expected.text == "".join(p.text for p in listener.all("progressed"))
    assert answer.finish_reason == "length"
    tokens = listener.all("progressed")[-1].tokens
    assert tokens == expected.prompt_tokens + len(expected.token_ids)


def test_a_text_goes_on_where_it_was(listener):
    """What was typed and what was written are one text, as they stand; nothing is read twice."""
    first = begun("text").with_turn("user", "It is")
    second = first.with_turn("assistant", listener.answer(first).text).with_turn("user", " man")
    before = listener.worker._session.token_ids
    answer = listener.answer(second)
    after = listener.worker._session.token_ids
    again = listener.answer(second.with_turn("assistant", answer.text))  # nothing typed

    assert after[: len(before)] == before
    assert listener.worker._session.token_ids[: len(after)] == after
    assert again.text


def test_a_text_from_a_file_is_read_as_its_turns(listener, folder):
    said = begun("text")
    for role, text in (("user", "It is"), ("assistant", " a truth"), ("user", " that a man")):
        said = said.with_turn(role, text)
    with wr.load(folder) as model:
        session = model.session()
        for turn in said.turns:
            session.append(turn.content)
        expected = session.generate(max_new_tokens=8).text

    assert listener.answer(said).text == expected


def test_another_text_starts_from_its_own_beginning(listener):
    one, other = (begun("text").with_turn("user", text) for text in ("It is", "a wife"))
    expected = listener.answer(one).text
    listener.answer(other)
    listener.answer(begun("chat").with_turn("user", "It is"))

    assert listener.answer(one).text == expected


def test_stop_ends_the_reply_before_the_next_token(listener):
    cancel = wr.Cancellation()
    listener.on_progress = lambda _: cancel.cancel()

    said = begun("chat").with_turn("user", "It is")
    answer = listener.answer(said, max_new_tokens=400, cancel=cancel)

    first, *rest = listener.all("progressed")
    assert answer.finish_reason == "cancelled"
    assert first.tokens == rest[-1].tokens
    assert answer.text == first.text + "".join(p.text for p in rest)


def test_a_long_chat_goes_on_and_tells_that_it_forgets(tmp_path):
    listener = Listener()
    listener.worker.load(TinyBundle(chat=CHAT, context_length=64).write(tmp_path / "b"))
    for mode in ("chat", "text"):
        said = begun(mode).with_turn("user", "It is a truth")
        assert not listener.answer(said).forgot
        for _ in range(6):
            said = said.with_turn("assistant", " a wife ").with_turn("user", "It is a truth")
        assert listener.answer(said).forgot


def test_a_text_without_room_for_a_reply_is_told_and_forgotten(listener):
    said = begun("text").with_turn("user", "It is")
    expected = listener.answer(said)
    too_long = said.with_turn("assistant", expected.text).with_turn("user", "日本語" * 400)
    with pytest.raises(pytest.fail.Exception, match="tokens, the context 600; shorten the prompt"):
        listener.answer(too_long)

    assert listener.answer(said).text == expected.text
