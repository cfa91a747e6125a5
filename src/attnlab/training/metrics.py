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
from lightning.fabric.utilities.apply_func import move_data_to_device

from attnlab.probes.capture import eval_mode
from attnlab.training.callbacks import Clock
from attnlab.training.lightning_module import TaskData, TaskModule


def measured(trainer: L.Trainer, lit: TaskModule, clock: Clock) -> dict[str, Any]:
    """The figures: losses in nats a prediction, over the whole data or a fixed piece of it."""
    batches = trainer.global_step * trainer.accumulate_grad_batches
    figures: dict[str, Any] = {
        "val_loss": lit.val_losses[trainer.global_step],
        "train_loss": evaluate(trainer, lit, lit.train_piece()),
        "best_val_loss": min(
            (x for x in lit.val_losses.values() if math.isfinite(x)), default=math.nan
        ),
    }
    with eval_mode(lit.net), trainer.precision_plugin.forward_context():
        figures |= lit.extra_metrics(clock.seconds_a_batch)
    return figures | {
        "steps": trainer.global_step,
        "tokens": lit.tokens(batches),
        "tokens_per_second": lit.tokens(batches) / max(1, batches) / clock.seconds_a_batch,
        "wall_seconds": clock.seconds,
        "parameters": sum(p.numel() for p in lit.net.parameters()),
    }


@torch.inference_mode()
def evaluate(trainer: L.Trainer, lit: TaskModule, batches: Sequence[Any]) -> float:
    """Mean loss over batches, in nats a prediction, in the precision of the training."""
    device = trainer.strategy.root_device
    net = lit.net.to(device)
    was_training = net.training
    net.eval()
    total, count = 0.0, 0
    with trainer.precision_plugin.forward_context():
        for batch in batches:
            count += lit.predictions(batch)
            total += float(lit.batch_loss(move_data_to_device(batch, device), "sum"))
    net.train(was_training)
    return total / count


def provenance(trainer: L.Trainer, corpus: TaskData) -> dict[str, Any]:
    """Corpus, code, versions, precision and device that the figures come from."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    packages = ("attnlab", "torch", "lightning", "hydra-core", "numpy")
    return {
        "corpus": corpus.record,
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
