"""The frozen example writes what the unfrozen one writes, wherever it lies, without any Python."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.tiny_bundle import TinyBundle

pytest.importorskip("PyInstaller", reason="PyInstaller is not installed; pip install pyinstaller")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform == "linux" and not sysconfig.get_config_var("Py_ENABLE_SHARED"),
        reason="this Python has no shared library, which PyInstaller needs",
    ),
]
FOLDER = Path(__file__).parents[2] / "examples/pyinstaller"
NICE = ("nice", "-n", "15") if shutil.which("nice") else ()
SYSTEM = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Freeze the example, then carry it elsewhere."""
    made, elsewhere = (tmp_path_factory.mktemp(name) for name in ("made", "elsewhere"))
    command = [*NICE, sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", "--noconfirm"]
    where = ["--distpath", made, "--workpath", made / "work", FOLDER / "complete.spec"]
    environment = os.environ | {"PYINSTALLER_CONFIG_DIR": str(made / "cache")}
    subprocess.run([*command, *where], check=True, env=environment)
    shutil.move(made / "complete", elsewhere / "complete")
    return elsewhere / "complete" / "complete"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return TinyBundle().write(tmp_path_factory.mktemp("b") / "b")


def test_a_frozen_program_writes_the_very_same_text(program, bundle, tmp_path):
    arguments = [bundle, "It is a truth", "--max-new-tokens", "40"]
    script = [sys.executable, "-X", "utf8", FOLDER / "complete.py"]
    expected = subprocess.run([*script, *arguments], check=True, capture_output=True)

    frozen = subprocess.run(
        [program, *arguments], check=True, capture_output=True, cwd=tmp_path, env=SYSTEM
    )

    assert frozen.stdout == expected.stdout
    assert len(frozen.stdout) > 40
    assert frozen.stderr == b""


def test_a_frozen_program_says_what_is_wrong(program, tmp_path):
    command = [program, tmp_path, "It is"]
    done = subprocess.run(command, check=False, capture_output=True, env=SYSTEM)

    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"complete: error: {tmp_path}")
    assert done.stdout == b""


def test_a_frozen_program_takes_along_what_it_needs_and_no_more(program):
    packages = {path.name.partition(".")[0] for path in (program.parent / "_internal").iterdir()}

    assert {"numpy", "onnxruntime", "tokenizers"} <= packages
    assert packages.isdisjoint({"torch", "onnx", "matplotlib", "PySide6", "yaml", "psutil"})
