"""What metrics.json says of a run: its figures, and where they come from."""

import math
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
import torch.nn.functional as F

from attnlab.data.batches import Batch, validation_batches
from attnlab.data.corpus import Corpus
from attnlab.training.callbacks import Clock
from attnlab.training.lit import LitGPT


def measured(trainer: L.Trainer, lit: LitGPT, clock: Clock) -> dict[str, Any]:
    """The figures: losses in nats a character, each over a whole text or a fixed piece of it.

    `train_loss` is of the end of the training text, as long a piece as the validation text.
    """
    corpus, block_size = lit.corpus, lit.net.block_size
    piece = corpus.train[-len(corpus.val) :]
    tokens = trainer.global_step * trainer.accumulate_grad_batches * lit.batch_size * block_size
    figures: dict[str, Any] = {
        "val_loss": lit.val_losses[trainer.global_step],
        "train_loss": evaluate(trainer, lit, validation_batches(piece, block_size)),
        "best_val_loss": min(
            (x for x in lit.val_losses.values() if math.isfinite(x)), default=math.nan
        ),
    }
    if corpus.val_floor is not None:
        figures["val_floor"] = corpus.val_floor
    return figures | {
        "steps": trainer.global_step,
        "tokens": tokens,
        "tokens_per_second": lit.batch_size * block_size / clock.seconds_a_batch,
        "wall_seconds": clock.seconds,
        "parameters": sum(p.numel() for p in lit.net.parameters()),
    }


@torch.inference_mode()
def evaluate(trainer: L.Trainer, lit: LitGPT, batches: Sequence[Batch]) -> float:
    """Mean loss over batches, in nats a character, in the precision of the training."""
    net = lit.net.to(trainer.strategy.root_device)
    was_training = net.training
    net.eval()
    total, count = 0.0, 0
    with trainer.precision_plugin.forward_context():
        for x, y in batches:
            logits = net(x.to(trainer.strategy.root_device))
            target = y.to(logits.device).flatten()
            total += float(F.cross_entropy(logits.flatten(0, 1), target, reduction="sum"))
            count += y.numel()
    net.train(was_training)
    return total / count


def provenance(trainer: L.Trainer, corpus: Corpus) -> dict[str, Any]:
    """Corpus, code, versions, precision and device that the figures come from."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    packages = ("attnlab", "torch", "lightning", "hydra-core", "numpy")
    return {
        "corpus": {"name": corpus.name, "sha256": corpus.sha256, "characters": len(corpus.text)},
        "git": git_state(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
        "precision": str(trainer.precision),
        "device": device.type,
        "device_name": name or platform.machine(),
        "devices": trainer.world_size,
        "threads": torch.get_num_threads(),
    }


def git_state() -> dict[str, Any] | None:
    """Commit and dirtiness of the source tree; None where it is not run from one."""
    source = Path(__file__).parent
    try:
        commit = _git(source, "rev-parse", "HEAD")
        if not _git(source, "ls-files", "--", __file__):
            return None  # an installed package below somebody else's repository
        return {"commit": commit, "dirty": bool(_git(source, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
