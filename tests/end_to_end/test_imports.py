"""The library part stands without the training part."""

import subprocess
import sys

import pytest

HEAVY = {"lightning", "pytorch_lightning", "hydra", "datasets", "matplotlib", "tensorboard"}


@pytest.mark.parametrize(
    "modules",
    ["attnlab.attention, attnlab.model", "attnlab.init", "attnlab.cli", "attnlab.interop"],
)
def test_importing_the_library_imports_nothing_heavy(modules: str) -> None:
    code = f"import sys, {modules}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
