"""A message inside the window: it interrupts nobody and stays until it is read."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QStyle, QToolButton, QWidget

RADIUS = 8
TINT = 40  # of 255


class Notice(QWidget):
    """A coloured bar with an icon and plain text; hidden while there is nothing to say.

    Args:
        icon: Of the system's style.
        color: Of the bar; it is laid over the window's own, light or dark.
        closable: Whether the user may put it away.
    """

    def __init__(
        self, icon: QStyle.StandardPixmap, color: Qt.GlobalColor, *, closable: bool
    ) -> None:
        super().__init__()
        self._color = QColor(color)
        picture = QLabel()
        picture.setPixmap(self.style().standardIcon(icon).pixmap(18, 18))
        self._label = QLabel()
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setWordWrap(True)
        self._label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        close = QToolButton(autoRaise=True)
        close.setText("✕")
        close.setToolTip("Close this message")
        close.setVisible(closable)
        close.clicked.connect(self.hide)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 6, 6)
        row.addWidget(picture, 0, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self._label, 1)
        row.addWidget(close, 0, Qt.AlignmentFlag.AlignTop)
        self.hide()

    @property
    def text(self) -> str:
        """What it says; empty while it is hidden."""
        return "" if self.isHidden() else self._label.text()

    def say(self, text: str) -> None:
        """Show a message."""
        self._label.setText(text)
        self.show()

    def paintEvent(self, _: QPaintEvent) -> None:
        """Paint the bar."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tint = QColor(self._color)
        tint.setAlpha(TINT)
        painter.setBrush(tint)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.drawRoundedRect(self.rect(), RADIUS, RADIUS)
