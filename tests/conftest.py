"""Fixtures that every suite shares."""

from pathlib import Path

import pytest


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
