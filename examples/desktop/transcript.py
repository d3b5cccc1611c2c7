"""What was said, as a page of plain text that can be selected and copied across turns."""

from itertools import groupby

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QPainter,
    QPaintEvent,
    QPalette,
    QResizeEvent,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFormat,
)
from PySide6.QtWidgets import QFrame, QTextEdit

from conversation import Conversation, Mode, Role

COLUMN = 720  # pixels; longer lines are hard to read
GAP = 28
INDENT = 14
TURN = QTextFormat.Property.UserProperty
IS_USER = TURN + 1
LINE_HEIGHT = 130  # percent
TINT = 36  # of 255


class Transcript(QTextEdit):
    """Shows turns, and follows the text that comes unless its reader has scrolled up.

    Only plain text is ever inserted. Colours are taken from the palette when they are painted, so
    the page follows the system's light and dark.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setAccessibleName("Conversation")
        self._mode: Mode = "chat"
        self._names: dict[Role, str] = {"user": "You", "assistant": ""}
        self._turns = 0
        self._format = QTextCharFormat()
        self._at_start = True
        self._follows = True
        self.verticalScrollBar().valueChanged.connect(self._note_reader)
        self.verticalScrollBar().rangeChanged.connect(self._follow)

    def show_conversation(self, conversation: Conversation) -> None:
        """Show these turns instead of all that is there."""
        self.clear()
        self._center()
        self._mode, self._turns = conversation.mode, 0
        self._names["assistant"] = conversation.name
        whole = self._cursor()
        whole.beginEditBlock()  # it is laid out once
        for turn in conversation.turns:
            self.begin(turn.role)
            self.write(turn.content)
        whole.endEditBlock()
        self._follows = True
        self._follow()

    def begin(self, role: Role) -> None:
        """Let the text that is written now belong to a new turn."""
        self._turns += 1
        self._at_start = True
        if role == "user":
            self._follows = True  # who writes wants to see it
        self._format = QTextCharFormat()
        if self._mode == "chat":
            self._begin_message(role)
            return
        if role == "user":
            self._format.setFontWeight(QFont.Weight.Bold)
        if self._turns == 1:
            self._cursor().setBlockFormat(_block_format(0))

    def write(self, text: str) -> None:
        """Add text to the turn."""
        if self._mode == "chat" and self._at_start:
            text = text.lstrip()
        if not text:
            return
        self._at_start = False
        self._cursor().insertText(text, self._format)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint a panel behind what the user said, then the text."""
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._tint())
        for rect in self._panels():
            painter.drawRoundedRect(rect, INDENT - 2, INDENT - 2)
        painter.end()
        super().paintEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the column of text in the middle."""
        self._center()
        super().resizeEvent(event)

    def _begin_message(self, role: Role) -> None:
        cursor = self._cursor()
        caption = _block_format(self._turns, is_user=role == "user")
        if self._turns > 1:
            cursor.insertBlock()
            caption.setTopMargin(GAP)
        cursor.setBlockFormat(caption)
        small = QTextCharFormat()
        small.setFontWeight(QFont.Weight.Bold)
        small.setFontPointSize(self.font().pointSizeF() * 0.85)
        cursor.insertText(self._names[role], small)
        cursor.insertBlock(_block_format(self._turns, is_user=role == "user"), self._format)

    def _panels(self) -> list[QRectF]:
        """Return the rectangles of the user's messages that are in sight."""
        found = []
        for _, blocks in groupby(
            self._blocks(), key=lambda block: block.blockFormat().property(TURN)
        ):
            block, *others = blocks
            if not block.blockFormat().boolProperty(IS_USER):
                continue
            rect = self._rect(block)
            for other in others:
                rect = rect.united(self._rect(other))
            rect.adjust(-INDENT, -INDENT / 1.5, INDENT, INDENT / 1.5)
            if rect.intersects(QRectF(self.viewport().rect())):
                found.append(rect)
        return found

    def _rect(self, block: QTextBlock) -> QRectF:
        """Return where a block's text is, in pixels of the viewport."""
        layout = block.layout()
        rect = QRectF(layout.boundingRect()).translated(layout.position())
        return rect.translated(
            -self.horizontalScrollBar().value(), -self.verticalScrollBar().value()
        )

    def _blocks(self) -> list[QTextBlock]:
        blocks, block = [], self.document().begin()
        while block.isValid():
            blocks.append(block)
            block = block.next()
        return blocks

    def _tint(self) -> QColor:
        color = QColor(self.palette().color(QPalette.ColorRole.Accent))
        color.setAlpha(TINT)
        return color

    def _center(self) -> None:
        side = max(2.0 * INDENT, (self.width() - COLUMN) / 2)
        frame = self.document().rootFrame().frameFormat()
        frame.setLeftMargin(side)
        frame.setRightMargin(side - (self.width() - self.viewport().width()))  # a scroll bar
        frame.setTopMargin(GAP)
        frame.setBottomMargin(GAP)
        self.document().rootFrame().setFrameFormat(frame)

    def _cursor(self) -> QTextCursor:
        """Return a cursor at the end; the reader's own selection stays."""
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        return cursor

    def _note_reader(self, value: int) -> None:
        """Stop to follow the text where its reader has scrolled up, and begin again at the end."""
        self._follows = value >= self.verticalScrollBar().maximum() - GAP

    def _follow(self) -> None:
        if self._follows:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())


def _block_format(turn: int, *, is_user: bool = False) -> QTextBlockFormat:
    block = QTextBlockFormat()
    block.setLineHeight(LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    block.setProperty(TURN, turn)
    block.setProperty(IS_USER, is_user)
    return block
