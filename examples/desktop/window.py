"""The window: it asks the worker, shows what it answers, and keeps the conversation."""

import enum
from pathlib import Path

from PySide6.QtCore import QThread, Signal, Slot
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QLabel, QMainWindow, QProgressBar

import dialogs
import wiola_runtime as wr
from conversation import Conversation, ConversationError, Mode
from menus import Menus
from view import View
from worker import Answer, Device, Opened, Progress, Request, Worker

ENDINGS = {
    "eos": "Ready",
    "stop": "Ready",
    "length": "Ended at the longest reply",
    "context": "Ended: the context is full",
    "cancelled": "Stopped",
}


class State(enum.Enum):
    """What the worker is at."""

    EMPTY = "No bundle is open"
    LOADING = "Loading"
    READY = "Ready"
    WRITING = "Writing"


class ChatWindow(QMainWindow):
    """One window with one model in a thread of its own.

    Args:
        device: Where bundles run: cpu, cuda or auto.
    """

    load_wanted = Signal(object)  # Path
    answer_wanted = Signal(object)  # Request
    state_changed = Signal(object)  # State

    def __init__(self, device: Device = "cpu") -> None:
        super().__init__()
        self.state = State.EMPTY
        self.conversation: Conversation | None = None  # with finished replies only
        self._asked: Conversation | None = None  # what is being answered
        self._typed = ""
        self._opened: Opened | None = None
        self._cancel = wr.Cancellation()
        self.view = View()
        self.setCentralWidget(self.view)
        self.resize(820, 640)
        self.menus = Menus(self)
        self._build_status_bar()
        self._connect()
        self._thread = QThread(self)
        self._start(Worker(device))
        self._enter(State.EMPTY)

    def open_bundle(self, folder: Path) -> None:
        """Begin to load a bundle; the conversation there is ends once that has succeeded."""
        self.view.problem.hide()
        if self._opened is None:
            self.view.show_nothing(f"Loading {folder.name}…", str(folder), can_open=False)
        self._enter(State.LOADING, f"Loading {folder.name}…")
        self.load_wanted.emit(folder)

    def new_conversation(self, mode: Mode) -> None:
        """Begin anew: a chat, or a text that is continued."""
        assert self._opened is not None, "the actions wait for a bundle"
        name, bundle = self._opened.name, self._opened.fingerprint
        self._show(Conversation(bundle=bundle, name=name, mode=mode))

    def save_conversation(self, path: Path) -> bool:
        """Write the conversation to a file; tell whether that worked."""
        assert self.conversation is not None, "the actions wait for a bundle"
        try:
            self.conversation.save(path)
        except ConversationError as error:
            self.view.problem.say(str(error))
            return False
        self.setWindowModified(False)
        self.statusBar().showMessage(f"Saved {path.name}")
        return True

    def open_conversation(self, path: Path) -> None:
        """Go on with a conversation from a file."""
        assert self._opened is not None, "the actions wait for a bundle"
        name, bundle = self._opened.name, self._opened.fingerprint
        try:
            found = Conversation.read(path)
            found.require(bundle, name, chats=self._opened.no_chat is None)
        except ConversationError as error:
            self.view.problem.say(str(error))
            return
        self._show(found)
        self.statusBar().showMessage(f"Opened {path.name}")

    @Slot()
    def send(self) -> None:
        """Give the model what was typed."""
        if self.state is not State.READY or self.conversation is None:
            return
        field, chats = self.view.composer.field, self.conversation.mode == "chat"
        self._typed = field.toPlainText()
        text = self._typed.strip() if chats else self._typed
        if not text and (chats or not self.conversation.turns):
            return
        self._asked = self.conversation.with_turn("user", text) if text else self.conversation
        self.view.problem.hide()
        field.clear()
        if text:
            self.view.transcript.begin("user")
            self.view.transcript.write(text)
        self.view.transcript.begin("assistant")
        self._cancel = wr.Cancellation()
        self._enter(State.WRITING, "Reading…")
        self.answer_wanted.emit(
            Request(
                conversation=self._asked,
                temperature=self.view.composer.temperature.value(),
                max_new_tokens=self.view.composer.longest.value(),
                cancel=self._cancel,
            )
        )

    @Slot()
    def stop(self) -> None:
        """End the reply before its next token; what is there stays."""
        self._cancel.cancel()

    def closeEvent(self, event: QCloseEvent) -> None:
        """End the worker before the window goes."""
        if not self._may_leave():
            event.ignore()
            return
        self.stop()
        self.hide()  # at once, though a bundle that is being loaded is waited for
        self._thread.quit()
        self._thread.wait()
        super().closeEvent(event)

    @Slot(object)
    def _on_loaded(self, opened: Opened) -> None:
        self._opened = opened
        self.view.composer.temperature.setValue(opened.defaults.temperature)
        self.view.composer.longest.setValue(opened.defaults.max_new_tokens)
        self._enter(State.READY)
        self.new_conversation("chat" if opened.no_chat is None else "text")

    @Slot(str)
    def _on_load_failed(self, message: str) -> None:
        self.view.problem.say(message)
        if self._opened is None:
            self.view.show_nothing("No bundle is open", "Choose a folder that wiola-export wrote.")
        self._enter(State.EMPTY if self._opened is None else State.READY)

    @Slot(object)
    def _on_progress(self, progress: Progress) -> None:
        self.view.transcript.write(progress.text)
        self.statusBar().showMessage("Writing…")
        self._show_figures(progress.tokens_per_second, progress.tokens)

    @Slot(object)
    def _on_answered(self, answer: Answer) -> None:
        assert self._asked is not None, "every answer was asked for"
        if not answer.text and answer.finish_reason == "cancelled":
            self._take_back()
            self._enter(State.READY, ENDINGS["cancelled"])
            return
        chats = self._asked.mode == "chat"
        reply = answer.text.strip() if chats else answer.text
        self.conversation = self._asked.with_turn("assistant", reply)
        self.setWindowModified(True)
        self._rate.setText(f"{answer.tokens_per_second:.0f} tokens/s")
        forgot = "; the oldest turns no longer fit and are forgotten" if answer.forgot else ""
        self._enter(State.READY, ENDINGS[answer.finish_reason] + forgot)

    @Slot(str)
    def _on_answer_failed(self, message: str) -> None:
        self.view.problem.say(message)
        self._take_back()
        self._enter(State.READY)

    def _take_back(self) -> None:
        """Undo the last `send`; its text goes before what was typed since."""
        assert self.conversation is not None
        self.view.transcript.show_conversation(self.conversation)
        self.view.composer.field.put_before(self._typed)

    def _show(self, conversation: Conversation) -> None:
        assert self._opened is not None
        self.conversation = conversation
        self.view.problem.hide()
        self.view.show_bundle(self._opened, conversation.mode)
        self.view.transcript.show_conversation(conversation)
        self.setWindowTitle(f"{conversation.name}[*] – Wiola chat")
        self.setWindowModified(False)
        self._show_figures(0.0, 0 if not conversation.turns else None)
        self._enter(State.READY)

    def _show_figures(self, rate: float, tokens: int | None) -> None:
        assert self._opened is not None
        self._rate.setText(f"{rate:.0f} tokens/s" if rate else "")
        used = "" if tokens is None else f"{tokens} / "
        self._used.setText(f"{used}{self._opened.context_length} tokens")

    def _enter(self, state: State, message: str = "") -> None:
        """Show a state everywhere, and allow what is possible in it."""
        self.state = state
        ready, writes = state is State.READY, state is State.WRITING
        is_text = self.conversation is not None and self.conversation.mode == "text"
        send = "Continue" if is_text else "Send"
        self.view.composer.show_state(ready=ready, writes=writes, send=send)
        self.menus.allow(
            bundles=state in (State.READY, State.EMPTY),
            conversations=ready,
            chat=ready and self._opened is not None and self._opened.no_chat is None,
            stop=writes,
        )
        self._busy.setVisible(state in (State.LOADING, State.WRITING))
        self.statusBar().showMessage(message or state.value)
        if ready:
            self.view.composer.field.setFocus()
        self.state_changed.emit(state)

    def _build_status_bar(self) -> None:
        self._busy = QProgressBar(minimum=0, maximum=0, textVisible=False)
        self._busy.setFixedSize(90, 8)
        self._rate, self._used = QLabel(), QLabel()
        for widget in (self._busy, self._rate, self._used):
            self.statusBar().addPermanentWidget(widget)
            widget.setContentsMargins(10, 0, 6, 0)

    def _connect(self) -> None:
        self.view.open_wanted.connect(self._choose_bundle)
        self.view.composer.send_wanted.connect(self.send)
        self.view.composer.stop_wanted.connect(self.stop)
        self.menus.open_bundle.triggered.connect(self._choose_bundle)
        self.menus.new_chat.triggered.connect(lambda: self._begin("chat"))
        self.menus.new_text.triggered.connect(lambda: self._begin("text"))
        self.menus.open.triggered.connect(self._choose_conversation)
        self.menus.save.triggered.connect(self._save_as)
        self.menus.stop.triggered.connect(self.stop)

    def _start(self, worker: Worker) -> None:
        """Let the worker live in its thread; signals between threads are queued by Qt."""
        self._worker = worker  # Qt holds no reference that Python's collector would see
        worker.moveToThread(self._thread)
        self.load_wanted.connect(worker.load)
        self.answer_wanted.connect(worker.answer)
        worker.loaded.connect(self._on_loaded)
        worker.load_failed.connect(self._on_load_failed)
        worker.progressed.connect(self._on_progress)
        worker.answered.connect(self._on_answered)
        worker.answer_failed.connect(self._on_answer_failed)
        self._thread.finished.connect(worker.deleteLater)
        self._thread.start()

    @Slot()
    def _choose_bundle(self) -> None:
        if self._may_leave() and (folder := dialogs.bundle_folder(self)):
            self.open_bundle(folder)

    @Slot()
    def _choose_conversation(self) -> None:
        if self._may_leave() and (path := dialogs.file_to_open(self)):
            self.open_conversation(path)

    @Slot()
    def _save_as(self) -> bool:
        path = dialogs.file_to_save(self)
        return path is not None and self.save_conversation(path)

    def _begin(self, mode: Mode) -> None:
        if self._may_leave():
            self.new_conversation(mode)

    def _may_leave(self) -> bool:
        """Ask what shall become of a conversation that is not saved; tell whether to go on."""
        if not self.isWindowModified():
            return True
        save = dialogs.save_first(self)
        return save is False or (save is True and self._save_as())
