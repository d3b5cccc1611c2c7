"""Where the user writes: a field that grows, the options of a reply, and one button."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QPalette, QTextCursor
from PySide6.QtWidgets import (
    QDoubleSpinBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

MOST_LINES = 8
RADIUS = 12


class Field(QPlainTextEdit):
    """Plain text; Enter submits it, Shift+Enter begins a new line."""

    submitted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTabChangesFocus(True)
        self.setAccessibleName("Your text")
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Submit at Enter."""
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.submitted.emit()
            return
        super().keyPressEvent(event)

    def put_before(self, text: str) -> None:
        """Insert text at the beginning; go to the end."""
        self.moveCursor(QTextCursor.MoveOperation.Start)
        self.insertPlainText(text)
        self.moveCursor(QTextCursor.MoveOperation.End)

    def _fit(self) -> None:
        """Be as high as the text, up to some lines."""
        needed = max(int(self.document().size().height()), 1)
        scrolls = needed > MOST_LINES
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(
            policy.ScrollBarAsNeeded if scrolls else policy.ScrollBarAlwaysOff
        )
        margins = 2 * int(self.document().documentMargin()) + 2
        self.setFixedHeight(min(needed, MOST_LINES) * self.fontMetrics().lineSpacing() + margins)


class Composer(QWidget):
    """The card at the bottom of the window.

    Its button sends while the model is idle, and stops while it writes.
    """

    send_wanted = Signal()
    stop_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.field = Field()
        self.temperature = QDoubleSpinBox(minimum=0.0, maximum=2.0, singleStep=0.1, decimals=2)
        self.temperature.setToolTip("0 always takes the likeliest token")
        self.longest = QSpinBox(minimum=1, maximum=100_000, singleStep=64, suffix=" tokens")
        self.button = QPushButton("Send")
        self.button.setAutoDefault(False)
        self._writes = False
        self._lay_out()
        self.field.submitted.connect(self.send_wanted)
        self.button.clicked.connect(self._clicked)

    def show_state(self, *, ready: bool, writes: bool, send: str) -> None:
        """Show what the button does now."""
        self._writes = writes
        self.button.setText("Stop" if writes else send)
        self.button.setEnabled(ready or writes)
        for widget in (self.temperature, self.longest):
            widget.setEnabled(ready)

    def paintEvent(self, _: QPaintEvent) -> None:
        """Paint a card with round corners in the colours of the palette."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(self.palette().color(QPalette.ColorRole.Mid))
        painter.setBrush(self.palette().color(QPalette.ColorRole.Base))
        painter.drawRoundedRect(
            self.rect().toRectF().adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS
        )

    def _lay_out(self) -> None:
        options = QHBoxLayout()
        for text, widget in (("Temperature", self.temperature), ("Longest reply", self.longest)):
            label = QLabel(text)
            label.setBuddy(widget)
            options.addWidget(label)
            options.addWidget(widget)
            options.addSpacing(12)
        options.addStretch()
        options.addWidget(self.button)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 10, 12, 10)
        column.setSpacing(8)
        column.addWidget(self.field)
        column.addLayout(options)

    def _clicked(self) -> None:
        (self.stop_wanted if self._writes else self.send_wanted).emit()
