"""The tasks with known answers: solved where theory says that they can be, and not elsewhere."""

from pathlib import Path

import pytest

from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.conftest import settings

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("overrides", "least", "most"),
    [
        ("data=copy", 0.99, 1.0),
        # The answer is 16 positions back; two layers of windows of 8 reach 14. Chance is 1/32.
        ("data=copy attn=sliding_window", 0.0, 0.1),
        ("data=induction", 0.99, 1.0),
        ("data=induction model.n_layer=1", 0.0, 0.5),
        ("data=mqar model.smear=1", 0.99, 1.0),
    ],
)
def test_accuracy(overrides: str, least: float, most: float, tmp_path: Path) -> None:
    short = ["trainer.max_steps=1500", "trainer.val_check_interval=1500", "probes=none"]
    cfg = settings("preset=tasks", *overrides.split(), *short, "logger=none")
    metrics = run(read_config(cfg), tmp_path / "run", variant="sdpa").metrics
    assert least <= metrics["val_accuracy"] <= most
