"""The script that draws the desktop example: a picture, or one line that says why there is none."""

import subprocess
import sys

import pytest
from support import desktop
from support.tiny_bundle import TinyBundle

# isort: split
from PySide6.QtGui import QImage


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return TinyBundle().write(tmp_path_factory.mktemp("b") / "b")


def draw(*arguments):
    """Run the script to its end; skip where it finds no font."""
    command = [sys.executable, "-X", "utf8", desktop.FOLDER / "screenshot.py", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, timeout=desktop.PATIENCE)
    if b"install one of the fonts" in done.stderr:
        pytest.skip("no font that screenshot.py knows is installed")
    return done


def test_the_picture_is_that_of_the_window(bundle, tmp_path):
    done = draw(bundle, tmp_path / "p.png", "--text", "--say", "It is ", "--longest", "4")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    picture = QImage(str(tmp_path / "p.png"))
    assert (picture.width(), picture.height()) == (820, 640)


@pytest.mark.parametrize(
    ("says", "picture", "message"),
    [
        ("It is", "absent/p.png", "/p.png cannot be written (Cannot open device for writing: "),
        ("It is", "p.unknown", "p.unknown cannot be written (Unsupported image format); name a ."),
        ("truth " * 600, "p.png", "error: the prompt has "),
    ],
)
def test_what_cannot_be_drawn_is_one_line(says, picture, message, bundle, tmp_path):
    done = draw(bundle, tmp_path / picture, "--text", "--say", says, "--longest", "4")

    assert done.returncode == 2
    assert done.stderr.decode().startswith("screenshot.py: error: ")
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / picture).exists()


def test_a_folder_that_is_no_bundle_is_one_line_and_the_thread_ends(tmp_path):
    done = draw(tmp_path, tmp_path / "p.png", "--say", "It is")

    assert done.returncode == 2
    message = f"{tmp_path / 'manifest.json'} not found; is {tmp_path} an exported bundle?"
    assert done.stderr.decode().splitlines() == [f"screenshot.py: error: {message}"]
