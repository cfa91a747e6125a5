"""A user's claim: one new directory and one YAML file, in a copy of the configuration."""

import shutil
from pathlib import Path

from attnlab.claims.paths import Paths
from tests.conftest import CONF

CLAIM = """
import torch

from attnlab.attention import kernels
from attnlab.claims import *


def noise(seed):
    return {"x": average_of_ones() + seed / 10}


def average_of_ones():
    q, mask = torch.zeros(1, 1, 2, 2), torch.ones(2, 2).tril().bool()
    return float(kernels.manual(q, q, q + 1, mask=mask, scale=1.0, dropout=0.0).mean())


def scaled(first, second):
    return shift() + first - second


def shift():
    return 0.0


def files(directory):
    return {"checkpoints": len(list((directory / "checkpoints").iterdir()))}


CLAIM = Claim(
    says="Mine.",
    last_look=20,
    predictions=(
        Trained(
            "better", "Flipped is no worse.", AtMost(5.0), role="secondary", seeds=2,
            arms=(Arm("flipped", ("attn=flipped",)), Arm("causal", ("attn=sdpa",))),
            contrast=scaled, given={"model.n_head": 2},
        ),
        Trained(
            "kept", "A run keeps a checkpoint.", AtLeast(0.5, unit=""), role="shown", seeds=2,
            arms=(Arm("flipped", ("attn=flipped",)),), contrast=level,
            metric=RunMetric(files, "checkpoints"),
        ),
        Measured(
            "noise", "x is small.", AtMost(THRESHOLD), measure=noise, value="x", where="here",
        ),
        Measured(
            "later", "x is above 0.5.", AtLeast(0.5), role="secondary", budget="full",
            measure=noise, value="x",
        ),
    ),
)
"""

SWEEP = """\
# @package _global_
defaults:
  - override /preset: micro
  - override /data: plays
  - override /logger: none
data: {length: 5000}
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16}
optim: {warmup_steps: 4}
trainer: {max_steps: STEPS, val_check_interval: STEPS}
checkpoint_every: 10
"""


def write(folder: Path, *, threshold: float = 5.0, steps: int = 10) -> Path:
    """A project folder with the claim `mine`."""
    if not (folder / "conf").exists():
        shutil.copytree(CONF, folder / "conf")
    own = folder / "experiments" / "mine"
    own.mkdir(parents=True, exist_ok=True)
    (own / "claim.py").write_text(CLAIM.replace("THRESHOLD", str(threshold)))
    sweep = folder / "conf" / "experiment" / "mine.yaml"
    sweep.parent.mkdir(exist_ok=True)
    sweep.write_text(SWEEP.replace("STEPS", str(steps)))
    return folder


def file(paths: Paths, name: str) -> Path:
    """A file of the claim."""
    return paths.experiments / "mine" / name
