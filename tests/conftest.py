"""Fixtures that every suite shares."""

from pathlib import Path

import pytest
from support import process


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


@pytest.fixture
def golden(request):
    """Compare text with a file beside the test; `--update-golden` rewrites it."""

    def check(name: str, actual: str) -> None:
        path = Path(request.path).with_name("files") / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(actual, encoding="utf-8", newline="\n")
        assert path.is_file(), f"{path} is missing; run: pytest --update-golden"
        assert actual == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(scope="session")
def demo_export(tmp_path_factory):
    """Export the demo to INT8 as a user does; return the finished process."""
    folder = tmp_path_factory.mktemp("demo") / "demo-int8"
    options = ["--variant", "demo", "--int8", "--calibration", "none", "--no-report"]
    return process.run(*options, "--out", folder)


@pytest.fixture(scope="session")
def demo_int8(demo_export):
    """Return the folder of that export; a test that changes it takes a copy."""
    assert demo_export.returncode == 0, demo_export.stderr.decode()
    return demo_export.args[-1]
