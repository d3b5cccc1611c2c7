"""The wheel of the runtime holds the package, its types and its command, and is small."""

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime"

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", folder, RUNTIME]
    subprocess.run(command, check=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_is_pure_and_small(wheel):
    assert wheel.name.startswith("wiola_runtime-")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 120_000


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    packages = ("wiola_run", "wiola_runtime", "wiola_serve")
    sources = {f"{name}/{p.name}" for name in packages for p in (RUNTIME / name).glob("*.py")}
    marks = {f"{name}/py.typed" for name in packages}
    assert {n for n in names if ".dist-info/" not in n} == sources | marks


def test_the_metadata_names_what_the_runtime_needs(wheel):
    """Neither build of ONNX Runtime is a plain dependency, since they exclude each other."""
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {n.partition("/")[0] for n in archive.namelist() if ".dist-info/" in n}
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        scripts = archive.read(f"{folder}/entry_points.txt").decode()

    plain = {r for r in metadata.get_all("Requires-Dist") if "extra" not in r}
    assert {r.partition(">")[0] for r in plain} == {"numpy", "tokenizers"}
    assert set(metadata.get_all("Provides-Extra")) == {"chat", "cpu", "cuda", "grammar", "server"}
    assert "wiola-run = wiola_run.__main__:main" in scripts
    assert "wiola-serve = wiola_serve.__main__:main" in scripts
