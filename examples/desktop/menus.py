"""The window's menus: every action with its key, and when it is possible."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMainWindow

Key = QKeySequence.StandardKey | QKeySequence | Qt.Key


class Menus:
    """The actions of a window, in its menu bar.

    Args:
        window: Gets the menus and owns the actions.
    """

    def __init__(self, window: QMainWindow) -> None:
        self._window = window
        self.open_bundle = self._action("Open bundle…", QKeySequence("Ctrl+B"))
        self.new_chat = self._action("New chat", QKeySequence.StandardKey.New)
        self.new_text = self._action("New text", QKeySequence("Ctrl+Shift+N"))
        self.open = self._action("Open…", QKeySequence.StandardKey.Open)
        self.save = self._action("Save as…", QKeySequence.StandardKey.Save)
        self.stop = self._action("Stop", Qt.Key.Key_Escape)
        self.quit = self._action("Quit", QKeySequence("Ctrl+Q"))
        bundle = window.menuBar().addMenu("&Bundle")
        bundle.addAction(self.open_bundle)
        bundle.addSeparator()
        bundle.addAction(self.quit)
        conversation = window.menuBar().addMenu("&Conversation")
        conversation.addActions([self.new_chat, self.new_text])
        conversation.addSeparator()
        conversation.addActions([self.open, self.save])
        conversation.addSeparator()
        conversation.addAction(self.stop)
        self.quit.triggered.connect(window.close)

    def allow(self, *, bundles: bool, conversations: bool, chat: bool, stop: bool) -> None:
        """Enable what is possible now."""
        self.open_bundle.setEnabled(bundles)
        for action in (self.new_text, self.open, self.save):
            action.setEnabled(conversations)
        self.new_chat.setEnabled(chat)
        self.stop.setEnabled(stop)

    def _action(self, text: str, key: Key) -> QAction:
        action = QAction(text, self._window)
        action.setShortcut(key)
        return action
