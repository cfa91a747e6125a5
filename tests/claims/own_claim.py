"""A claim of a user's own: one new folder and one YAML, in a copy of the configuration."""

import shutil
from pathlib import Path

from tests.conftest import CONF

CLAIM = """
from attnlab.claims import *


def noise(seed, budget):
    return {"x": 1.0 + seed / 10}


def files(folder):
    return {"checkpoints": len(list((folder / "checkpoints").iterdir()))}


CLAIM = Claim(
    says="Mine.",
    parts=(
        Trained(
            "better", "Flipped is no worse.", AtMost(THRESHOLD), {"quick": Effort(3)},
            arms=(Arm("flipped", ("attn=flipped",)), Arm("causal", ("attn=sdpa",))),
            given={"model.n_head": 2}, bearing="for", where="here",
        ),
        Trained(
            "kept", "A run keeps a checkpoint.", AtLeast(0.5), {"quick": Effort(3)},
            arms=(Arm("flipped", ("attn=flipped",)),), contrast=level,
            metric=Reading(files, "checkpoints"),
        ),
        Measured(
            "noise", "x is above 0.5.", AtLeast(0.5), {"quick": Effort(3)},
            measure=noise, value="x",
        ),
        Measured(
            "later", "x is above 0.5.", AtLeast(0.5), {"full": Effort(3)},
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
