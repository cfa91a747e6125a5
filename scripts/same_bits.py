"""Whether all variants train to the same weights as at another commit, to the last bit.

    python scripts/same_bits.py COMMIT [OVERRIDE ...]

Checks the commit out into a temporary git worktree. Each tree trains the variants that both have,
by its own `train.py` in its own process: 40 steps of a tiny model on a CPU, with the default
optimizer; `strict_flip` diverges at once. Prints a table, and exits with code 1 if a weight
differs or a run has failed. An override changes the runs of both trees: attn=sdpa,kda or
trainer.precision=bf16-mixed. It takes several minutes; do not change the tree meanwhile.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
# 72 positions are more than the 64 that the delta rule computes at once.
TINY = """
preset=micro model.n_embd=32 model.block_size=72 data=text data.batch_size=4 seed=0
optim.warmup_steps=5 trainer.max_steps=40 trainer.val_check_interval=40 trainer.accelerator=cpu
probes=none logger=none check_layer=false train_loss=false hydra/launcher=basic name=same_bits
""".split()

Weights = dict[str, Tensor]


def variants_of(tree: Path) -> set[str]:
    """The names of the variants of a tree."""
    return {file.stem for file in tree.glob("conf/attn/*.yaml")}


def train(tree: Path, outputs: Path, overrides: list[str]) -> dict[str, Weights]:
    """Train with the code of a tree; variant -> its weights. A run that fails has none."""
    text = ROOT / "CONTRIBUTING.md"
    command = [sys.executable, str(tree / "train.py"), "-m", *TINY, f"data.path={text}"]
    command += [f"outputs={outputs}", *overrides]
    environ = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=tree, env=environ, stdout=subprocess.DEVNULL)
    trained = {}
    for file in outputs.glob("same_bits/*/seed=0/checkpoints/last.ckpt"):
        variant = file.parents[2].name.partition(",")[0].removeprefix("attn=")
        trained[variant] = torch.load(file, weights_only=True)["state_dict"]
    return trained


def first_difference(before: Weights, after: Weights) -> str | None:
    """The first weight that differs, with the largest difference, or None if all bits agree."""
    if before.keys() != after.keys():
        return f"other names: {', '.join(sorted(before.keys() ^ after.keys()))}"
    for name, old in before.items():
        new = after[name]
        if old.shape != new.shape:
            return f"{name}: {tuple(old.shape)} became {tuple(new.shape)}"
        # As integers, so that NaN equals NaN, and 0 differs from -0.
        if not torch.equal(old.view(torch.int32), new.view(torch.int32)):
            return f"{name}: differs by up to {(old - new).abs().max():.1e}"
    return None


def main(commit: str, *overrides: str) -> int:
    with tempfile.TemporaryDirectory(prefix="same-bits-") as temporary:
        folder = Path(temporary)
        other = folder / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), commit], check=True)
        try:
            variants = sorted(variants_of(ROOT) & variants_of(other))
            chosen = [f"attn={','.join(variants)}", *overrides]
            before = train(other, folder / "before", chosen)
            after = train(ROOT, folder / "after", chosen)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    asked = next(x for x in reversed(chosen) if x.startswith("attn=")).removeprefix("attn=")
    different = 0
    for variant in asked.split(","):
        if variant in before and variant in after:
            result = first_difference(before[variant], after[variant])
        elif variant in before or variant in after:
            result = "has weights at only one of the commits: failed or diverged"
        else:
            result = None if variant == "strict_flip" else "has no weights: failed or diverged"
        different += result is not None
        print(f"{variant:24} {result or 'the same bits'}")
    print(f"{different} of {len(asked.split(','))} variants differ from {commit}")
    return int(different > 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
