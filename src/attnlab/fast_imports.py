"""Imports of thousands of modules in half of the time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

UNUSED = ("matplotlib", "scipy", "transformers")


@contextmanager
def imports() -> Iterator[None]:
    """Import without collecting garbage; imports make hardly any. What came is kept for good.

    The collector would look through all that PyTorch and Lightning define again and again while
    they are imported, and once more at the exit of the process.
    """
    before, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
    if len(sys.modules) > before:
        gc.freeze()


def import_torchmetrics() -> None:
    """Import torchmetrics, as Lightning will, without what only its metrics need.

    torchmetrics imports every package that any of its metrics could use: SciPy, Matplotlib,
    transformers. attnlab computes no metric by it, so it is told that these are not there; a
    metric that needs one says so by a ModuleNotFoundError. Does nothing where torchmetrics has
    been imported before.
    """
    if "torchmetrics" in sys.modules:
        return
    from lightning_utilities.core import imports as checks

    requirement_cache, package_available = checks.RequirementCache, checks.package_available

    def requirement_met(requirement: str | None = None, module: str | None = None) -> object:
        if requirement is not None and requirement.startswith(UNUSED):
            return False
        return requirement_cache(requirement, module)

    def package_met(name: str) -> bool:
        return name not in UNUSED and package_available(name)

    with (
        patch.object(checks, "RequirementCache", requirement_met),
        patch.object(checks, "package_available", package_met),
    ):
        import torchmetrics  # noqa: F401
