"""Lightning, imported in half of the time."""

import sys
from unittest.mock import patch

UNUSED = ("matplotlib", "scipy", "transformers")


def import_torchmetrics() -> None:
    """Import torchmetrics, as Lightning will, without what only its metrics need.

    torchmetrics imports every package that any of its metrics could use: SciPy, Matplotlib,
    transformers. attnlab computes no metric by it, so it is told that these are not there; a
    metric that needs one says so by a ModuleNotFoundError. Does nothing where torchmetrics has
    been imported before.
    """
    if "torchmetrics" in sys.modules:
        return
    from lightning_utilities.core import imports

    requirement_cache, package_available = imports.RequirementCache, imports.package_available

    def requirement_met(requirement: str | None = None, module: str | None = None) -> object:
        if requirement is not None and requirement.startswith(UNUSED):
            return False
        return requirement_cache(requirement, module)

    def package_met(name: str) -> bool:
        return name not in UNUSED and package_available(name)

    with (
        patch.object(imports, "RequirementCache", requirement_met),
        patch.object(imports, "package_available", package_met),
    ):
        import torchmetrics  # noqa: F401
