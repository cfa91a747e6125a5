"""The same command computes the same thing with each instruction set of this processor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab.processor import SMALLER_SETS
from tests.conftest import ROOT


def val_loss(outputs: Path, environment: dict[str, str]) -> float:
    """That of a short run of preset=fast."""
    words = ["preset=fast", f"outputs={outputs}", "trainer.accelerator=cpu", "logger=none"]
    words += ["trainer.max_steps=40", "trainer.val_check_interval=40", "probes=none"]
    command = [sys.executable, str(ROOT / "train.py"), *words]
    given = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    subprocess.run(command, env=given, check=True, capture_output=True)
    metrics = json.loads(next(outputs.rglob("metrics.json")).read_text())
    return float(metrics["val_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("smaller", SMALLER_SETS)
def test_the_fast_preset_learns_the_same_with_a_smaller_set(smaller: str, tmp_path: Path) -> None:
    usual = val_loss(tmp_path / "usual", {})
    found = val_loss(tmp_path / "smaller", SMALLER_SETS[smaller])
    assert found == pytest.approx(usual, abs=2e-3)
