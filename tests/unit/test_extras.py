"""A missing extra is explained; any other missing module is a bug and stays one."""

import pytest

from wiola_export.errors import MissingExtraError
from wiola_export.extras import explain_missing_extra


def test_a_missing_extra_names_the_command():
    with pytest.raises(MissingExtraError, match=r"pip install 'wiola-export\[trace\]'"):
        with explain_missing_extra():
            raise ModuleNotFoundError(name="torch.onnx")


def test_an_own_bug_is_not_hidden():
    with pytest.raises(ModuleNotFoundError, match="oops"):
        with explain_missing_extra():
            raise ModuleNotFoundError("oops", name="wiola_export.typo")
