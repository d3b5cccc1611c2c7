"""A missing extra is explained; any other missing module is a bug and stays one."""

import re
import tomllib
from pathlib import Path

import pytest

from wiola_export.errors import ExportError, MissingExtraError
from wiola_export.extras import EXTRAS, explain_missing_extra

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("name", ["torch", "torch.onnx", "torch.export._trace"])
def test_a_missing_extra_names_the_command(name):
    with pytest.raises(MissingExtraError) as caught:
        with explain_missing_extra():
            raise ModuleNotFoundError(name=name)

    message = "torch is not installed; run: pip install 'wiola-export[trace]'"
    assert str(caught.value) == message
    assert isinstance(caught.value, ExportError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("name", ["wiola_export.typo", "torchvision", None])
def test_an_own_bug_is_not_hidden(name):
    with pytest.raises(ModuleNotFoundError, match="oops"):
        with explain_missing_extra():
            raise ModuleNotFoundError("oops", name=name)


def test_a_name_that_an_installed_package_lacks_is_not_hidden():
    """`from torch import typo` is no missing package: another install would not help."""
    with pytest.raises(ImportError, match="cannot import name") as caught:
        with explain_missing_extra():
            raise ImportError("cannot import name 'typo' from 'torch'", name="torch")

    assert type(caught.value) is ImportError


def test_the_extras_are_those_that_the_distribution_offers():
    offered = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    brings = {
        extra: {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}
        for extra, requirements in offered.items()
    }

    assert {package for package, extra in EXTRAS.items() if package not in brings[extra]} == set()
    assert brings["trace"] <= set(EXTRAS)
