"""Draw the window of a real conversation: `python screenshot.py BUNDLE PICTURE --say TEXT`.

No display is needed. Every text in the picture comes from the bundle.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")  # it warns that it is off screen

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtGui import QFont, QFontDatabase, QImageWriter
from PySide6.QtWidgets import QApplication

from window import ChatWindow, State

PATIENCE = 120_000  # milliseconds
FONTS = ("Noto Sans", "DejaVu Sans", "Liberation Sans")


class PictureError(Exception):
    """There is no conversation to draw, or no file to draw it into."""


def main() -> int:
    """Converse with a bundle, and save what the window shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="folder that wiola-export wrote")
    parser.add_argument("picture", type=Path, help="file to write; its suffix names the format")
    parser.add_argument("--say", action="append", required=True, help="a message; repeatable")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--longest", type=int, default=48)
    parser.add_argument("--text", action="store_true", help="continue a text instead of a chat")
    arguments = parser.parse_args()
    application = QApplication(sys.argv[:1])
    try:
        application.setFont(QFont(installed_font(), 10))
        draw(arguments)
    except PictureError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    return 0


def draw(arguments: argparse.Namespace) -> None:
    """Converse in a window, save the picture, and end the window's thread whatever happens."""
    window = ChatWindow()
    try:
        converse(window, arguments)
        save(window, arguments.picture)
    finally:
        window.setWindowModified(False)  # nobody is there to be asked
        window.close()


def installed_font() -> str:
    """Return the first font that is there."""
    fonts = [name for name in FONTS if name in QFontDatabase.families()]
    if not fonts:
        raise PictureError(f"text would be boxes; install one of the fonts {', '.join(FONTS)}")
    return fonts[0]


def converse(window: ChatWindow, arguments: argparse.Namespace) -> None:
    """Open the bundle and say everything, as a user does."""
    window.show()
    window.open_bundle(arguments.bundle)
    wait(window)
    if arguments.text:
        window.new_conversation("text")
    window.view.composer.temperature.setValue(arguments.temperature)
    window.view.composer.longest.setValue(arguments.longest)
    for text in arguments.say:
        window.view.composer.field.setPlainText(text)
        window.send()
        wait(window)


def wait(window: ChatWindow) -> None:
    """Let the window work until the model is idle.

    The thread sleeps in Qt meanwhile: one that polls would keep Python from the model.
    """
    loop, patience = QEventLoop(), QTimer(singleShot=True)
    window.state_changed.connect(loop.quit)
    patience.timeout.connect(loop.quit)
    patience.start(PATIENCE)
    while window.state in (State.LOADING, State.WRITING) and patience.isActive():
        loop.exec()
    if window.view.problem.text:
        raise PictureError(window.view.problem.text)
    if window.state is not State.READY:
        raise PictureError(f"still {window.state.value.lower()} after {PATIENCE // 1000} s")


def save(window: ChatWindow, path: Path) -> None:
    """Write what the window shows into a file."""
    writer = QImageWriter(str(path))
    if not writer.write(window.grab().toImage()):
        found = writer.errorString()
        raise PictureError(f"{path} cannot be written ({found}); name a .png in an existing folder")


if __name__ == "__main__":
    sys.exit(main())
