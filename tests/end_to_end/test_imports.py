"""The library works without the packages for training."""

import subprocess
import sys

HEAVY = {
    *("lightning", "pytorch_lightning", "hydra", "omegaconf", "datasets", "matplotlib"),
    *("tensorboard", "transformers"),
}
LIBRARY = "attention model init checkup interop probes.measures commands.cli".split()


def test_importing_the_library_imports_nothing_heavy() -> None:
    modules = ", ".join(f"attnlab.{name}" for name in LIBRARY)
    code = f"import sys, {modules}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
