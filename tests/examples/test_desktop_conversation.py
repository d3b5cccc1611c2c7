"""Conversations in files: whole or not at all, and only for the bundle they belong to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.desktop import FOLDER

# isort: split
from conversation import Conversation, ConversationError, Turn

SAID = Conversation(bundle="abc", name="tiny", mode="chat").with_turn("user", "It is")


@given(
    mode=st.sampled_from(["chat", "text"]),
    turns=st.lists(st.builds(Turn, st.sampled_from(["user", "assistant"]), st.text())),
)
def test_what_is_saved_comes_back(tmp_path_factory, mode, turns):
    path = tmp_path_factory.mktemp("c") / "c.json"
    said = Conversation(bundle="abc", name="tiny", mode=mode, turns=tuple(turns))

    said.save(path)

    assert Conversation.read(path) == said
    assert [p.name for p in path.parent.iterdir()] == ["c.json"]


def test_a_conversation_grows_and_gives_its_messages():
    said = SAID.with_turn("assistant", "a truth")

    assert said.messages() == [
        {"role": "user", "content": "It is"},
        {"role": "assistant", "content": "a truth"},
    ]
    assert SAID.turns == (Turn("user", "It is"),)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "c.json"
    SAID.save(path)
    (tmp_path / ".c.json.partial").mkdir()  # in the way of a new one

    with pytest.raises(ConversationError, match=r"c\.json cannot be written \(.*; save elsewhere$"):
        SAID.with_turn("assistant", "a truth").save(path)

    assert Conversation.read(path) == SAID


def test_a_file_that_is_half_written_is_taken_away(tmp_path):
    path = tmp_path / "c.json"
    path.mkdir()

    with pytest.raises(ConversationError, match="cannot be written"):
        SAID.save(path)

    assert list(tmp_path.iterdir()) == [path]


def content(**changes):
    header = {"format": "wiola desktop conversation", "format_version": 1}
    fields = {"bundle": "abc", "name": "tiny", "mode": "chat", "turns": []}
    return json.dumps(header | fields | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no saved conversation, or damaged"),
        (content()[:-9], "is no saved conversation, or damaged"),
        ("[" * 100_000, "is no saved conversation, or damaged"),
        ("\udcff", "is no saved conversation, or damaged"),
        ("[]", "is no saved conversation; choose a file saved here"),
        ('{"format": "other"}', "is no saved conversation; choose"),
        (content(format_version=2), "has format 2; this program reads 1"),
        (content(mode="novel"), "is damaged (bundle, name or mode is not what it should be)"),
        (content(bundle=None), "is damaged (bundle, name or mode"),
        (content(turns=None), "is damaged ("),
        (content(turns=["hello"]), "is damaged ("),
        (content(turns=[{"role": "user"}]), "is damaged ("),
        (content(turns=[{"role": "user", "content": "x", "more": 1}]), "is damaged ("),
        (content(turns=[{"role": "king", "content": "x"}]), "a turn has role 'king' and content"),
        (content(turns=[{"role": "user", "content": 7}]), "content of type int; expected user or"),
    ],
)
def test_what_is_no_conversation_is_refused(tmp_path, text, message):
    path = tmp_path / "c.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(ConversationError) as refused:
        Conversation.read(path)

    assert message in str(refused.value)


def test_the_data_knows_nothing_of_qt():
    assert "PySide6" not in (FOLDER / "conversation.py").read_text(encoding="utf-8")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConversationError, match=r"c\.json cannot be read \(No such file"):
        Conversation.read(tmp_path / "c.json")


def test_a_conversation_is_tied_to_its_bundle():
    with pytest.raises(ConversationError, match=r"belongs to the bundle tiny \(abc…\), and other "):
        SAID.require("def", "other", chats=True)
    with pytest.raises(ConversationError, match="is a chat, and tiny cannot chat on this machine"):
        SAID.require("abc", "tiny", chats=False)
    SAID.require("abc", "tiny", chats=True)
