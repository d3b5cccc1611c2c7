"""Chat with a bundle in a window: `python app.py [BUNDLE]`."""

import argparse
import signal
import sys
from pathlib import Path

from PySide6.QtWidgets import QApplication

from window import ChatWindow


def main() -> int:
    """Run the application until its window is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, nargs="?", help="folder that wiola-export wrote")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in the terminal, which Qt does not see
    application = QApplication(sys.argv[:1])
    application.setApplicationName("Wiola chat")
    window = ChatWindow(arguments.device)
    window.show()
    if arguments.bundle is not None:
        window.open_bundle(arguments.bundle)
    return application.exec()


if __name__ == "__main__":
    sys.exit(main())
