"""Draw the window of a real conversation into a file: `python screenshot.py BUNDLE PICTURE`.

No display is needed. Every text in the picture comes from the bundle.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtGui import QFont, QFontDatabase
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from window import ChatWindow, State

PATIENCE = 120.0  # seconds
FONTS = ("Noto Sans", "DejaVu Sans", "Liberation Sans")


def main() -> int:
    """Converse with a bundle, and save what the window shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--say", action="append", required=True, help="a message; repeatable")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--longest", type=int, default=48)
    parser.add_argument("--text", action="store_true", help="continue a text instead of a chat")
    arguments = parser.parse_args()
    application = QApplication(sys.argv[:1])
    fonts = [name for name in FONTS if name in QFontDatabase.families()]
    if not fonts:
        parser.error(f"none of these fonts is installed: {', '.join(FONTS)}; text would be boxes")
    application.setFont(QFont(fonts[0], 10))
    window = ChatWindow()
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
    window.grab().save(str(arguments.picture))
    window.setWindowModified(False)  # nobody is there to be asked
    window.close()
    return 0


def wait(window: ChatWindow) -> None:
    """Let the window work until the model is idle."""
    deadline = time.monotonic() + PATIENCE
    while window.state is not State.READY:
        QTest.qWait(20)
        if time.monotonic() > deadline or window.view.problem.text:
            sys.exit(f"{window.state.value}: {window.view.problem.text}")


if __name__ == "__main__":
    sys.exit(main())
