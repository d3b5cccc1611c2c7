"""The desktop example in front of a user: real widgets, a real model, no display."""

import threading

import pytest
from support.desktop import application, wait_for
from support.tiny_bundle import TinyBundle

# isort: split
from PySide6.QtCore import QMimeData, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMainWindow

import dialogs
import wiola_runtime as wr
from conversation import Conversation
from window import ChatWindow, State
from wiola_runtime.manifest import ChatSpec

CHAT = ChatSpec(
    template=None,
    roles={"system": "<unk>", "user": "<pad>", "assistant": "<eos>"},
    turn_end="<|end|>",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "chat": TinyBundle(chat=CHAT, context_length=8000).write(folder / "chat"),
        "text": TinyBundle(weights="random", bos_id=None).write(folder / "text"),
    }


@pytest.fixture
def make(monkeypatch):
    """Make windows as a user does; all are closed at the end, and none asks a question."""
    monkeypatch.setattr(dialogs, "save_first", lambda _: False)
    windows = []

    def window(folder=None):
        application()
        made = ChatWindow()
        windows.append(made)
        made.show()
        if folder is not None:
            made.open_bundle(folder)
            wait_for(lambda: made.state is State.READY)
            made.view.composer.longest.setValue(12)
        return made

    yield window
    for made in windows:
        made.close()
        assert made._thread.isFinished()


@pytest.fixture
def chat(make, folders):
    return make(folders["chat"])


def type_text(window, text):
    QTest.keyClicks(window.view.composer.field, text)


def say(window, text):
    """Type, press Enter, wait for the whole reply."""
    type_text(window, text)
    QTest.keyClick(window.view.composer.field, Qt.Key.Key_Return)
    wait_for(lambda: window.state is State.READY)


def status(window):
    return window.statusBar().currentMessage()


def page(window):
    return window.view.transcript.toPlainText()


def test_without_a_bundle_there_is_only_the_way_to_one(make):
    window = make()

    assert window.state is State.EMPTY
    assert status(window) == "No bundle is open"
    assert not window.view.composer.isVisible()
    assert not window.menus.save.isEnabled()
    assert window.menus.open_bundle.isEnabled()
    window.send()
    assert window.state is State.EMPTY


@pytest.fixture
def gate(monkeypatch):
    """An event for which the loading of bundles waits."""
    event, load = threading.Event(), wr.load

    def slow(*args, **choices):
        assert event.wait(60)
        return load(*args, **choices)

    monkeypatch.setattr(wr, "load", slow)
    return event


def test_loading_is_seen_and_the_window_lives_on(make, folders, gate):
    """The bundle is only opened after the window's own timer has ticked many times."""
    ticks = []
    window = make()
    window.open_bundle(folders["chat"])
    timer = QTimer(interval=1)
    timer.timeout.connect(lambda: ticks.append(1))
    timer.start()
    wait_for(lambda: len(ticks) > 20)

    assert window.state is State.LOADING
    assert status(window) == "Loading chat…"
    assert window._busy.isVisible()
    assert not window.menus.open_bundle.isEnabled()
    gate.set()
    wait_for(lambda: window.state is State.READY)
    assert window.windowTitle() == "tiny[*] – Wiola chat"
    assert window.view.mode.text() == "Chat, in the bundle's own format · FP32 on CPU"
    assert not window._busy.isVisible()


def test_what_is_typed_is_answered(chat, folders):
    say(chat, "It is a truth")
    with wr.load(folders["chat"]) as model:
        result = model.chat([{"role": "user", "content": "It is a truth"}], max_new_tokens=12)

    user, assistant = chat.conversation.messages()
    assert user == {"role": "user", "content": "It is a truth"}
    assert assistant == {"role": "assistant", "content": result.text.strip()}
    assert page(chat).startswith("You\nIt is a truth\ntiny\n")
    assert chat._used.text() == f"{result.prompt_tokens + 12} / 8000 tokens"
    assert chat._rate.text().endswith(" tokens/s")
    assert status(chat) == "Ended at the longest reply"
    assert chat.view.composer.field.toPlainText() == ""


def test_replies_come_in_pieces_while_the_window_lives(chat, monkeypatch):
    """Each piece waits until the one before is on the page."""
    gates = [threading.Event() for _ in "abc"]

    def pieces():
        for gate, letter in zip(gates, "abc", strict=True):
            assert gate.wait(60)
            yield wr.Piece(text=letter)
        yield from wr.Session.stream(chat._worker._session, "It is", max_new_tokens=1)

    monkeypatch.setattr("worker.SECONDS_BETWEEN_UPDATES", 0)
    monkeypatch.setattr(wr.Session, "stream_chat", lambda *_, **__: pieces())
    type_text(chat, "hello")
    chat.send()
    for gate, so_far in zip(gates, ("a", "ab", "abc"), strict=True):
        assert chat.state is State.WRITING
        gate.set()
        wait_for(lambda so_far=so_far: f"tiny\n{so_far}" in page(chat))
    wait_for(lambda: chat.state is State.READY)


def test_shift_enter_begins_a_line_and_nothing_is_sent_for_nothing(chat):
    field = chat.view.composer.field
    QTest.keyClick(field, Qt.Key.Key_Return)
    assert chat.state is State.READY
    low = field.height()

    type_text(chat, "one")
    QTest.keyClick(field, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    type_text(chat, "two")

    assert field.toPlainText() == "one\ntwo"
    assert field.height() > low
    field.setPlainText("line\n" * 50)
    assert field.height() < 300


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_keeps_what_is_there(chat, how):
    composer = chat.view.composer
    composer.longest.setValue(7900)
    type_text(chat, "It is")
    QTest.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    assert chat.state is State.WRITING
    wait_for(lambda: chat._used.text().startswith(tuple("123456789")) and chat._rate.text())
    assert composer.button.text() == "Stop"

    if how == "button":
        QTest.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    else:
        chat.activateWindow()
        QTest.keyClick(composer.field, Qt.Key.Key_Escape)
    wait_for(lambda: chat.state is State.READY)

    assert status(chat) == "Stopped"
    assert composer.button.text() == "Send"
    assert chat.conversation.turns[1].content.split() == page(chat).partition("tiny\n")[2].split()
    composer.longest.setValue(12)
    say(chat, "and on")
    assert len(chat.conversation.turns) == 4


def test_a_reply_that_is_stopped_before_its_first_token_is_taken_back(chat, monkeypatch):
    turned = wr.Cancellation()
    turned.cancel()
    monkeypatch.setattr(wr, "Cancellation", lambda: turned)

    say(chat, "It is")

    assert chat.conversation.turns == ()
    assert chat.view.composer.field.toPlainText() == "It is"
    assert page(chat) == ""
    assert status(chat) == "Stopped"


def test_the_window_survives_what_nobody_foresaw(chat, monkeypatch, capfd):
    def broken(*_, **__):
        raise OSError("the disk is on fire")

    monkeypatch.setattr(wr.Session, "stream_chat", broken)
    type_text(chat, "It is")
    chat.send()
    type_text(chat, " a")  # while it fails
    wait_for(lambda: chat.state is State.READY)
    assert chat.view.problem.text == "the reply failed unexpectedly; the terminal tells more"
    assert "OSError: the disk is on fire" in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(dialogs, "save_first", lambda _: False)
    say(chat, " truth")

    assert chat.conversation.turns[0].content == "It is a truth"


def test_a_saved_conversation_goes_on_in_a_new_window(chat, make, folders, tmp_path):
    path = tmp_path / "c.json"
    say(chat, "It is a truth")
    assert chat.isWindowModified()
    assert chat.save_conversation(path)
    assert not chat.isWindowModified()
    assert status(chat) == "Saved c.json"
    other = make(folders["chat"])
    other.open_conversation(path)

    assert other.conversation == chat.conversation
    assert page(other).split() == page(chat).split()
    assert status(other) == "Opened c.json"
    assert other._used.text() == "8000 tokens"
    for window in (chat, other):
        say(window, "and on")
    assert other.conversation == chat.conversation
    assert len(other.conversation.turns) == 4


def test_a_wrong_file_is_told_in_the_window_and_changes_nothing(chat, tmp_path):
    say(chat, "It is")
    before = chat.conversation
    path = tmp_path / "c.json"
    path.write_text("{", encoding="utf-8")

    chat.open_conversation(path)

    assert chat.view.problem.text == f"{path} is no saved conversation, or damaged"
    assert chat.conversation == before
    assert not chat.save_conversation(tmp_path / "absent" / "c.json")
    assert chat.view.problem.text.endswith("save elsewhere")
    say(chat, "and on")
    assert chat.view.problem.text == ""


def test_a_conversation_of_another_bundle_is_refused(chat, tmp_path):
    Conversation(bundle="0" * 64, name="other", mode="chat").save(tmp_path / "c.json")

    chat.open_conversation(tmp_path / "c.json")

    assert chat.view.problem.text.startswith(
        "this conversation belongs to the bundle other (000000000000…), and tiny ("
    )


def test_a_folder_that_is_no_bundle_is_told_in_the_window(make, folders, tmp_path):
    window = make()
    window.open_bundle(tmp_path)
    wait_for(lambda: window.state is not State.LOADING)

    assert window.state is State.EMPTY
    assert window.view.problem.text.endswith(f"is {tmp_path} an exported bundle?")
    window.open_bundle(folders["chat"])
    wait_for(lambda: window.state is State.READY)
    assert window.view.problem.text == ""
    say(window, "It is")
    window.open_bundle(tmp_path)
    wait_for(lambda: window.state is not State.LOADING)
    assert window.state is State.READY
    assert len(window.conversation.turns) == 2


def test_a_bundle_without_chat_continues_texts_and_says_so(make, folders):
    window = make(folders["text"])

    assert window.view.mode.text().startswith("No chat: the model continues your text · FP32 on C")
    assert "\nbundle tiny has no chat format: " in window.view.mode.text()
    assert window.view.random.text.startswith("The weights of this bundle are random")
    assert window.view.composer.button.text() == "Continue"
    assert not window.menus.new_chat.isEnabled()
    window.send()
    assert window.state is State.READY
    say(window, "It is ")
    text = "".join(turn.content for turn in window.conversation.turns)
    assert text.startswith("It is ")
    window.send()  # nothing typed: on it goes
    wait_for(lambda: window.state is State.READY)
    assert [turn.role for turn in window.conversation.turns] == ["user", "assistant", "assistant"]


def test_the_user_may_have_a_text_continued_where_chat_is_possible(chat):
    say(chat, "It is")
    chat.menus.new_text.trigger()

    assert chat.view.mode.text() == "No chat: the model continues your text · FP32 on CPU"
    assert chat.conversation.turns == ()
    assert chat.view.random.text == ""
    chat.menus.new_chat.trigger()
    assert chat.conversation.mode == "chat"


def test_what_cannot_be_answered_comes_back_to_the_field(chat):
    say(chat, "It is")
    before = page(chat)
    chat.view.composer.field.setPlainText("日本語" * 4000)
    chat.send()
    wait_for(lambda: chat.state is State.READY)

    assert "the context 8000; shorten the prompt" in chat.view.problem.text
    assert chat.view.composer.field.toPlainText() == "日本語" * 4000
    assert page(chat).split() == before.split()
    assert len(chat.conversation.turns) == 2


def test_what_looks_like_html_is_text(chat):
    say(chat, "<b>It</b> &amp; <img src='x'>")

    assert "<b>It</b> &amp; <img src='x'>" in page(chat)
    mime = QMimeData()
    mime.setHtml("<b>bold</b>")
    mime.setText("<i>plain</i>")
    chat.view.composer.field.insertFromMimeData(mime)
    assert chat.view.composer.field.toPlainText() == "<i>plain</i>"
    chat.view.problem.say("<b>no</b>")
    assert chat.view.problem._label.textFormat() is Qt.TextFormat.PlainText


def test_the_page_follows_the_text_unless_its_reader_has_scrolled_up(chat):
    transcript = chat.view.transcript
    bar = transcript.verticalScrollBar()
    for role in ("user", "assistant", "user", "assistant"):
        transcript.begin(role)
        for _ in range(40):
            transcript.write("one more line\n")
        QTest.qWait(1)
        assert bar.value() == bar.maximum() > 0

    bar.setValue(10)
    transcript.write("line\n" * 20)
    QTest.qWait(1)
    assert bar.value() == 10
    say(chat, "It is")
    assert bar.value() == bar.maximum()


def test_the_column_of_text_stays_in_the_middle(chat):
    transcript = chat.view.transcript
    for width in (500, 820, 1400):
        chat.resize(width, 640)
        for lines in (1, 200):
            transcript.begin("assistant")
            transcript.write("line\n" * lines)
            QTest.qWait(1)
            frame = transcript.document().rootFrame().frameFormat()
            bar = transcript.width() - transcript.viewport().width()
            assert frame.leftMargin() == frame.rightMargin() + bar >= 28


def test_closing_while_it_writes_ends_cleanly(chat):
    chat.view.composer.longest.setValue(7900)
    type_text(chat, "It is")
    chat.send()
    wait_for(chat._rate.text)

    assert chat.close()

    assert chat._thread.isFinished()
    assert chat._cancel.is_cancelled


def test_closing_while_it_loads_waits_for_the_bundle(make, folders, gate):
    window = make()
    window.open_bundle(folders["chat"])
    threading.Timer(0.2, gate.set).start()

    assert window.close()

    assert gate.is_set()
    assert window._thread.isFinished()
    QTest.qWait(10)  # what the worker said last changes nothing
    assert not window.isVisible()


@pytest.mark.parametrize(
    ("answer", "path", "closes"),
    [(None, None, False), (False, None, True), (True, None, False), (True, "c.json", True)],
)
def test_what_is_not_saved_is_asked_about(chat, monkeypatch, tmp_path, answer, path, closes):
    say(chat, "It is")
    target = path and tmp_path / path
    monkeypatch.setattr(dialogs, "save_first", lambda _: answer)
    monkeypatch.setattr(dialogs, "file_to_save", lambda _: target)

    assert chat.close() is closes
    assert chat._thread.isFinished() is closes
    if path:
        assert Conversation.read(target) == chat.conversation
    chat.setWindowModified(False)


def test_menus_ask_for_files_and_folders(chat, monkeypatch, tmp_path, folders):
    say(chat, "It is")
    path = tmp_path / "c.json"
    monkeypatch.setattr(dialogs, "file_to_save", lambda _: path)
    monkeypatch.setattr(dialogs, "file_to_open", lambda _: path)
    monkeypatch.setattr(dialogs, "bundle_folder", lambda _: folders["text"])
    chat.menus.save.trigger()
    said = chat.conversation
    chat.menus.new_chat.trigger()
    chat.menus.open.trigger()
    assert chat.conversation == said
    chat.menus.open_bundle.trigger()
    wait_for(lambda: chat.state is State.READY)

    assert chat.conversation.mode == "text"
    assert isinstance(chat, QMainWindow)
