"""Lightning, imported in half of the time; imported before anything else of Lightning's.

Lightning imports torchmetrics, and torchmetrics imports every package that any of its metrics
could use: SciPy, Matplotlib, transformers. attnlab computes no metric by it. So torchmetrics is
told that they are not there; a metric that needs one says so by a ModuleNotFoundError.
"""

import sys
from unittest.mock import patch

from lightning_utilities.core import imports

UNUSED = ("matplotlib", "scipy", "transformers")

if "torchmetrics" not in sys.modules:
    requirement_cache, package_available = imports.RequirementCache, imports.package_available

    def _requirement(requirement: str | None = None, module: str | None = None) -> object:
        if requirement is not None and requirement.startswith(UNUSED):
            return False
        return requirement_cache(requirement, module)

    def _package(name: str) -> bool:
        return name not in UNUSED and package_available(name)

    with (
        patch.object(imports, "RequirementCache", _requirement),
        patch.object(imports, "package_available", _package),
    ):
        import torchmetrics  # noqa: F401
