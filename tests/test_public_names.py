"""`import attnlab`: names that are loaded when they are used."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

import attnlab


@pytest.mark.parametrize("name", attnlab.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(attnlab, name) is not None
    assert name in dir(attnlab)


def test_no_public_name_hides_a_module() -> None:
    assert not set(attnlab.__all__) & {module.name for module in iter_modules(attnlab.__path__)}


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, attnlab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("package", ["attnlab.attention", "attnlab.model"])
def test_every_name_of_the_configuration_is_there(package: str) -> None:
    module = import_module(package)
    assert set(module.__all__) <= vars(module).keys()
    assert not {
        n for n in module.__all__ if hasattr(sys.modules.get(f"{package}.{n}"), "__file__")
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = attnlab.nothing
