"""The public surface is a list, and the list is true."""

import builtins
import types

import pytest

import wiola_calibration
import wiola_export
import wiola_runtime

PACKAGES = [wiola_runtime, wiola_calibration, wiola_export]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_what_a_package_offers_is_what_it_lists(package):
    found = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    assert sorted(found) == sorted(package.__all__)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_an_import_of_everything_hides_no_builtin(package):
    assert not set(package.__all__) & set(dir(builtins))
