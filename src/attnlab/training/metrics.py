"""The content of metrics.json: how a run ended, what was measured, and where it comes from."""

import hashlib
import math
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch as L
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.callbacks import WeightAveraging

from attnlab.errors import LIBRARIES, with_location
from attnlab.model import GPT
from attnlab.probes.base import LAYER_ERRORS, Probe
from attnlab.probes.capture import eval_mode
from attnlab.probes.costs import costs
from attnlab.probes.layer_check import users_layers
from attnlab.runs.run_directory import variant_of
from attnlab.runs.settings import Settings, identity
from attnlab.training.callbacks import Clock, RunCheckpoints
from attnlab.training.checkpoints import conditions
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
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, WeightAveraging):
            # Puts the average into the model; a fit that has no step left did not call it.
            callback.on_train_end(trainer, lit)
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
    records = [callback.record for callback in callbacks if isinstance(callback, Probe)]
    figures |= {} if not isinstance(lit.net, GPT) else {"costs": _costs(lit.net)}
    if own := lit.recipe["own_code"]:
        figures["own_code"] = own
    if lit.resumed:
        figures["resumed"] = lit.resumed
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


def provenance(trainer: L.Trainer, lit: TaskModule) -> dict[str, Any]:
    """Corpus, code, versions, precision and device that the metrics come from."""
    packages = ("attnlab", "torch", "lightning", "hydra-core", "numpy")
    return {
        "corpus": lit.corpus.record,
        "git": lit.recipe["git"],
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
    } | conditions(trainer)


def own_code(settings: Settings) -> dict[str, Any]:
    """The digest, and the `git_state`, of each of the user's modules that the settings name; only
    settings that can change the result count."""
    values = map(str, identity(settings).values())
    modules = {name: sys.modules.get(name) for name in (x.rpartition(".")[0] for x in values)}
    return {name: code for name, x in modules.items() if x is not None and (code := _code_of(x))}


@cache  # when it was imported; the file may change while the module is used
def _code_of(module: ModuleType) -> dict[str, Any] | None:
    file = Path(str(vars(module).get("__file__")))
    if file.suffix != ".py" or any(library in file.parents for library in (*LIBRARIES, SOURCE)):
        return None
    return {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "git": git_state(file)}


@cache  # when attnlab was imported
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
