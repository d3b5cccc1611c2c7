"""The questions that the window asks in dialogs of their own."""

from pathlib import Path

from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

CONVERSATIONS = "Conversations (*.json)"


def bundle_folder(parent: QWidget) -> Path | None:
    """Ask for a bundle's folder; None where the user thought better of it."""
    found = QFileDialog.getExistingDirectory(parent, "Open a bundle")
    return Path(found) if found else None


def file_to_open(parent: QWidget) -> Path | None:
    """Ask which conversation to open."""
    found, _ = QFileDialog.getOpenFileName(parent, "Open a conversation", "", CONVERSATIONS)
    return Path(found) if found else None


def file_to_save(parent: QWidget) -> Path | None:
    """Ask where to save; the dialog asks before it lets a file be replaced."""
    dialog = QFileDialog(parent, "Save the conversation", "", CONVERSATIONS)
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.setDefaultSuffix("json")
    return Path(dialog.selectedFiles()[0]) if dialog.exec() else None


def save_first(parent: QWidget) -> bool | None:
    """Ask what becomes of an unsaved conversation: True saves it, None stays with it."""
    buttons = QMessageBox.StandardButton
    answer = QMessageBox.question(
        parent,
        "Wiola chat",
        "Save the conversation first?",
        buttons.Save | buttons.Discard | buttons.Cancel,
    )
    return {buttons.Save: True, buttons.Discard: False}.get(answer)
