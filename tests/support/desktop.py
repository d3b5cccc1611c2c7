"""The desktop example, importable; without a display. Skips whoever imports it without PySide6."""

import os
import sys
import time
from pathlib import Path

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
REASON = "PySide6 is not importable; pip install PySide6-Essentials"
pytest.importorskip("PySide6.QtWidgets", reason=REASON, exc_type=ImportError)

FOLDER = Path(__file__).parents[2] / "examples/desktop"
sys.path.insert(0, str(FOLDER))

from PySide6.QtTest import QTest  # noqa: E402
from PySide6.QtWidgets import QApplication  # noqa: E402

PATIENCE = 60.0  # seconds; a test that waits so long has failed


def application() -> QApplication:
    """Return the one application of this process."""
    return QApplication.instance() or QApplication(["test"])


def wait_for(holds) -> None:
    """Let events be handled until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        QTest.qWait(5)
        assert time.monotonic() < deadline, "it never held"
