"""What the window shows: who is there, notices, the conversation, and where one writes."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QPushButton,
    QStackedWidget,
    QStyle,
    QVBoxLayout,
    QWidget,
)

from composer import Composer
from notice import Notice
from transcript import COLUMN, INDENT, Transcript
from worker import Opened

MARGIN = 20
RANDOM_WEIGHTS = (
    "The weights of this bundle are random: all it writes is noise. It measures size and speed on "
    "this machine, nothing else."
)
PLACEHOLDERS = {
    "chat": "Write a message. Enter sends it, Shift+Enter begins a new line.",
    "text": "Begin a text, or say how it goes on. It is joined as you type it, so mind the space.",
}


class View(QWidget):
    """The widgets of the window; it knows nothing of threads and files."""

    open_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.title = _label(points=5, bold=True)
        self.mode = _label()
        self.mode.setWordWrap(True)
        self.random = Notice(
            QStyle.StandardPixmap.SP_MessageBoxWarning, Qt.GlobalColor.darkYellow, closable=False
        )
        self.problem = Notice(
            QStyle.StandardPixmap.SP_MessageBoxCritical, Qt.GlobalColor.red, closable=True
        )
        self.transcript = Transcript()
        self.composer = Composer()
        self._welcome = _label(points=6, bold=True)
        self._hint = _label()
        self._open = QPushButton("Open a bundle…")
        self._open.clicked.connect(self.open_wanted)
        self._pages = QStackedWidget()
        self._pages.addWidget(self._welcome_page())
        self._pages.addWidget(self.transcript)
        self._lay_out()
        self.show_nothing("No bundle is open", "A bundle is a folder that wiola-export wrote.")

    def show_nothing(self, title: str, hint: str, *, can_open: bool = True) -> None:
        """Show why there is no conversation."""
        self._pages.setCurrentIndex(0)
        self._welcome.setText(title)
        self._hint.setText(hint)
        self._open.setVisible(can_open)
        self._header.hide()
        self.composer.hide()

    def show_bundle(self, opened: Opened, mode: str) -> None:
        """Show which bundle is open, and say plainly what becomes of what is typed."""
        self._pages.setCurrentIndex(1)
        self._header.show()
        self.composer.show()
        self.title.setText(opened.name)
        runs = f"{opened.precision.upper()} on {opened.provider.removesuffix('ExecutionProvider')}"
        if mode == "chat":
            self.mode.setText(f"Chat, in the bundle's own format · {runs}")
        else:
            why = f"\n{opened.no_chat}" if opened.no_chat else ""
            self.mode.setText(f"No chat: the model continues your text · {runs}{why}")
        self.random.setVisible(opened.is_random)
        if opened.is_random:
            self.random.say(RANDOM_WEIGHTS)
        self.composer.field.setPlaceholderText(PLACEHOLDERS[mode])

    def _welcome_page(self) -> QWidget:
        page = QWidget()
        column = QVBoxLayout(page)
        column.setSpacing(12)
        column.addStretch(2)
        for widget in (self._welcome, self._hint, self._open):
            column.addWidget(widget, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(3)
        return page

    def _lay_out(self) -> None:
        self._header = QWidget()
        header = QVBoxLayout(self._header)
        header.setContentsMargins(MARGIN, 14, MARGIN, 8)
        header.setSpacing(2)
        header.addWidget(self.title)
        header.addWidget(self.mode)
        notices = QVBoxLayout()
        notices.setContentsMargins(MARGIN, 0, MARGIN, 0)
        notices.setSpacing(8)
        notices.addWidget(self.random)
        notices.addWidget(self.problem)
        bottom = QHBoxLayout()
        bottom.setContentsMargins(MARGIN, 12, MARGIN, 8)
        bottom.addStretch()
        bottom.addWidget(self.composer, 1000)
        bottom.addStretch()
        self.composer.setMaximumWidth(COLUMN + 2 * INDENT)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._header)
        column.addLayout(notices)
        column.addSpacing(8)
        column.addWidget(self._pages, 1)
        column.addLayout(bottom)


def _label(*, points: int = 0, bold: bool = False) -> QLabel:
    label = QLabel()
    label.setTextFormat(Qt.TextFormat.PlainText)  # names come from files
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    font = label.font()
    font.setPointSize(font.pointSize() + points)
    font.setBold(bold)
    label.setFont(font)
    return label
