"""The content of metrics.json: how a run ended, what was measured, and where it comes from."""

import hashlib
import math
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device

from attnlab.data.batches import TaskData
from attnlab.errors import LIBRARIES, with_location
from attnlab.model import GPT
from attnlab.probes.base import LAYER_ERRORS, Probe
from attnlab.probes.capture import eval_mode
from attnlab.probes.costs import costs
from attnlab.probes.layer_check import users_layers
from attnlab.runs.run_directory import variant_of
from attnlab.runs.settings import Settings, flat
from attnlab.training.callbacks import Clock, RunCheckpoints
from attnlab.training.lightning_module import TaskModule

SOURCE = Path(__file__).parent.parent


def ending(trainer: L.Trainer, checkpoints: RunCheckpoints) -> tuple[Settings, Settings]:
    """How a run that returned ended, for metrics.json and for status.json."""
    step, divergence, stopped = trainer.global_step, checkpoints.divergence, checkpoints.stopped
    if divergence.step is not None:
        last = {"last_finite_loss": divergence.last_finite_loss}
        metrics = {"status": "diverged", "diverged_at_step": divergence.step} | last
        status = {"step": divergence.step, "reason": divergence.reason} | last
        return metrics | {"first_nonfinite": divergence.first}, status
    if stopped and step < trainer.max_steps:  # trainer.min_steps may overrule a callback
        metrics = {"status": "stopped", "stopped_because": stopped}
        return metrics, {"step": step, "reason": stopped, "max_steps": trainer.max_steps}
    return {"status": "finished"}, {"step": step}


def measured(trainer: L.Trainer, lit: TaskModule, clock: Clock) -> dict[str, Any]:
    """Losses in nats per prediction, the metrics of the task, the speed, and those of probes."""
    lit.to(trainer.strategy.root_device)  # Lightning leaves it on the CPU
    batches = trainer.global_step * trainer.accumulate_grad_batches
    finite = [x for x in lit.val_losses.values() if math.isfinite(x)]
    figures: dict[str, Any] = {"seed": lit.seed, "unit": lit.unit}
    figures |= {"baseline": variant_of(lit.baseline), "compiled": lit.recipe["config"]["compile"]}
    figures["val_loss"] = lit.val_losses[trainer.global_step]
    figures["best_val_loss"] = min(finite, default=math.nan)
    with eval_mode(lit.net), trainer.precision_plugin.forward_context():
        if lit.recipe["config"]["train_loss"]:
            loss = count = 0.0
            for batch in lit.held_out("train"):
                loss += float(lit.batch_loss(move_data_to_device(batch, lit.device), "sum"))
                count += lit.predictions(batch)
            figures["train_loss"] = loss / count
        figures |= lit.extra_metrics(clock.seconds_a_batch)
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    records = [callback.record for callback in callbacks if isinstance(callback, Probe)]
    figures |= {} if not isinstance(lit.net, GPT) else {"costs": _costs(lit.net)}
    if own := own_code({key: lit.recipe["config"][key] for key in ("attn", "model", "data")}):
        figures["own_code"] = own
    return figures | {
        "steps": trainer.global_step,
        "tokens": lit.tokens(batches),
        "tokens_per_second": lit.tokens(batches) / max(1, batches) / clock.seconds_a_batch,
        "wall_seconds": clock.seconds,
        "parameters": sum(p.numel() for p in lit.net.parameters()),
        "probes": {key: x for record in records for key, x in record.items()},
    }


def _costs(net: GPT) -> dict[str, Any]:
    """The costs of attention; of a user's layers, perhaps why they cannot be measured."""
    try:
        return costs(net)
    except LAYER_ERRORS as error:
        if not users_layers(net):
            raise
        return {"error": with_location(error)}


def provenance(trainer: L.Trainer, corpus: TaskData) -> dict[str, Any]:
    """Corpus, code, versions, precision and device that the metrics come from."""
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


def own_code(settings: Settings) -> dict[str, Any]:
    """The digest, and the `git_state`, of each of the user's modules that the settings name."""
    found = {}
    for value in flat(settings).values():
        name = str(value).rpartition(".")[0]
        file = Path(str(vars(sys.modules[name]).get("__file__")) if name in sys.modules else "")
        installed = any(library in file.parents for library in (*LIBRARIES, SOURCE))
        if file.suffix == ".py" and not installed:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            found[name] = {"sha256": digest, "git": git_state(file)}
    return found


def git_state(file: Path = SOURCE / "__init__.py") -> dict[str, Any] | None:
    """The commit of a file's tree and whether files differ from it; None outside of a clone."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        if not git("ls-files", "--", str(file)):
            return None  # an installed package below somebody else's repository
        rows = ":(top,exclude)experiments/*/*.jsonl"  # appended while claims run
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--", ":/", rows))}
    except (OSError, subprocess.SubprocessError):
        return None
