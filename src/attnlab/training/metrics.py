"""The content of metrics.json: how a run ended, what was measured, and where it comes from."""

import math
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import WeightAveraging

from attnlab import __version__
from attnlab.data.contract import count_predictions
from attnlab.errors import BadInput
from attnlab.probes.base import Probe
from attnlab.probes.capture import (
    costs,
    count_parameters,
    eval_mode,
    first_nonfinite,
    mean_future_mass,
)
from attnlab.processor import instruction_set, processor_model
from attnlab.training.callbacks import Watch
from attnlab.training.lightning_module import GPTModule

SOURCE = Path(__file__).parents[1]  # of attnlab


def run_metrics(trainer: L.Trainer, lit: GPTModule, watch: Watch) -> dict[str, object]:
    """How a run ended, its losses in nats per prediction, its speed, and what probes measured.
    Puts the model on the device of the trainer. BadInput if a callback has changed the weights
    since they were validated."""
    step = trainer.global_step
    losses = lit.val_losses
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    lit.to(trainer.strategy.root_device)  # Lightning leaves it on the CPU
    for callback in callbacks:
        if isinstance(callback, WeightAveraging):
            callback.on_train_end(trainer, lit)  # a fit that had no step left did not call it
    if lit.validated not in (None, lit.fingerprint()):
        raise BadInput(
            "a callback changed the weights after their last validation, so the losses are not "
            "those of the trained model; remove that callback, or use callbacks=ema"
        )
    metrics: dict[str, object] = {"variant": lit.settings.variant, "seed": lit.seed, "steps": step}
    metrics |= {"baseline": "sdpa"} | how_it_ended(trainer, watch) | {"val_loss": losses[step]}
    if lit.val_share < 1:  # with trainer.limit_val_batches
        metrics["val_share"] = lit.val_share
    metrics["best_val_loss"] = min(filter(math.isfinite, losses.values()), default=math.nan)
    probes: dict[str, object] = {}
    for callback in callbacks:
        if isinstance(callback, Probe):
            probes |= callback.record
    x, _ = lit.data.windows("val", lit.net.block_size, 2)
    with eval_mode(lit.net), trainer.precision_plugin.forward_context():
        # Whatever the probes are, a run that reads the future has to say so.
        probes["attn/future_mass"] = mean_future_mass(lit.net, x.to(lit.device))
        if watch.diverged_at is not None:
            metrics["first_nonfinite"] = first_nonfinite(lit.net, x.to(lit.device))
        if lit.settings.train_loss:
            metrics["train_loss"] = train_loss(lit)
        metrics |= data_metrics(lit)
    tokens = step * trainer.accumulate_grad_batches * lit.batch_size * lit.net.block_size
    return metrics | {
        "tokens": tokens,
        "tokens_per_second": tokens / watch.seconds if watch.seconds else math.nan,
        "wall_seconds": watch.seconds,
        "parameters": count_parameters(lit.net),
        "costs": costs(lit.net),
        "probes": probes,
    }


def how_it_ended(trainer: L.Trainer, watch: Watch) -> dict[str, object]:
    """The status of an ended run: diverged, with the step and the last finite loss; finished; or
    stopped, with the reason of the callback that stopped it."""
    if watch.diverged_at is not None:
        return {
            "status": "diverged",
            "diverged_at_step": watch.diverged_at,
            "last_finite_loss": watch.last_finite_loss,
        }
    if trainer.global_step == trainer.max_steps:
        return {"status": "finished"}
    return {"status": "stopped", "stopped_because": watch.stopped_because}


def train_loss(lit: GPTModule) -> float:
    """The mean loss over as much of the training data as the validation has."""
    total = predictions = 0.0
    for x, y in lit.held_out("train"):
        total += float(lit.loss((x.to(lit.device), y.to(lit.device)), "sum"))
        predictions += count_predictions(y)
    return total / predictions


def data_metrics(lit: GPTModule) -> dict[str, object]:
    """The unit of the losses, and what only some data have: bits per byte of a text, the accuracy
    of a task, losses at the lengths of `data.eval_lengths`, and the lowest loss that is possible
    on all validation data."""
    data = lit.data
    measures: dict[str, object] = {"unit": data.unit}
    bits = data.bits_per_byte(lit.val_losses[lit.trainer.global_step])
    if bits is not None:
        measures["bits_per_byte"] = bits
    lengths = lit.settings.data.eval_lengths
    if data.is_task or lengths:
        from attnlab.trained.evaluation import at_lengths, by_position

        if data.is_task:
            whole = by_position(lit.net, lit.held_out("val"), lit.net.block_size)
            measures["val_accuracy"] = whole["accuracy"]
        if lengths:
            longer = at_lengths(lit.net, data, lengths, lit.settings.model, lit.settings.attn)
            measures["by_length"] = {
                str(at.length): by_position(at.net, at.batches, at.length) for at in longer
            }
    read_only_some = lit.val_share < 1
    if data.val_floor is not None and not read_only_some:
        measures["val_floor"] = data.val_floor
    return measures


def provenance(trainer: L.Trainer, lit: GPTModule) -> dict[str, object]:
    """The data, the code and the machine that the metrics come from."""
    return {
        "corpus": lit.data.record,
        "precision": str(trainer.precision),
        "device": lit.device.type,
        "devices": trainer.world_size,
        "threads": torch.get_num_threads(),
        "processor": processor_model(),
        "instruction_set": instruction_set(),
        "versions": {
            "attnlab": __version__,
            **{package: version(package) for package in ("torch", "lightning", "numpy")},
        },
        "python": platform.python_version(),
        "git": git_commit(),
    }


def git_commit() -> str | None:
    """The commit of attnlab's clone, with + if files differ from it; None outside of a clone."""
    command = ["git", "-C", str(SOURCE), "describe", "--always", "--dirty=+"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
    )
    return done.stdout.strip() or None
