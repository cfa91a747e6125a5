"""The assertions and the plugin in an environment of torch, pytest, and the wheel."""

import os
import re
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TESTS = '''
import sys
import pytest
import torch
from torch import nn

from attnlab.checkup import CheckupFailed, assert_cache_equal, assert_healthy, checkup

class Mean(nn.Module):
    """The mean of all tokens up to position t, and of as many later ones."""
    vocab_size, block_size = 11, 13
    def __init__(self, later):
        super().__init__()
        self.later = later
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
    def forward(self, ids):
        T = ids.shape[1]
        mask = torch.ones(T, T).tril(self.later)
        return self.head(mask / mask.sum(-1, keepdim=True) @ self.embed(ids))

def test_causal(assert_causal):
    assert_causal(Mean(0), complete=True)
    with pytest.raises(CheckupFailed, match="off by one"):
        assert_causal(Mean(1))

def test_more(attnlab_checkup):
    report = attnlab_checkup(Mean(0))
    assert_healthy(report)
    assert "Healthy" in report.to_text() and report.to_json()
    for name in ("numpy", "yaml", "rich", "scipy", "lightning"):
        assert name not in sys.modules
'''


def with_requirements(*names: str) -> dict[str, Distribution]:
    """The installed distributions of these names and of all that they require."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            found[name] = distribution(name)
            needed = map(Requirement, found[name].requires or [])
            waiting += [r.name for r in needed if not r.marker or r.marker.evaluate({"extra": ""})]
    return found


@pytest.mark.long
def test_the_wheel_needs_torch_alone(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel]
    subprocess.run(install, check=True)
    for package in with_requirements("torch", "pytest").values():
        for top in {file.parts[0] for file in package.files or [] if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))
    (tmp_path / "test_theirs.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-S", "-m", "pytest", "-q", "-p", "no:cacheprovider"]  # no site
    done = subprocess.run(
        [*command, "test_theirs.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.long  # a time, which other programs change
def test_importing_the_checkup_takes_a_tenth_of_a_second_beyond_torch() -> None:
    code = (
        "import time, torch; begin = time.process_time(); import attnlab.checkup; "
        "print(time.process_time() - begin)"
    )
    done = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)]
    assert min(map(float, done)) < 0.1
