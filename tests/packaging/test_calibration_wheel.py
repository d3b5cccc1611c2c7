"""The wheel of the exporter holds every packaged text."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORPORA = "wiola_calibration/corpora"

pytestmark = pytest.mark.packaging


def test_the_wheel_holds_the_packaged_texts_byte_for_byte(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, ROOT]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{CORPORA}/")]
        found = {Path(name).name: archive.read(name) for name in names}

    folder = ROOT / "calibration" / CORPORA
    assert found == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"austen_calibration.txt", "kjv_calibration.txt"} <= set(found)
