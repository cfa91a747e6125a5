"""Reads the checkpoint from which a run resumes, and checks it as a whole."""

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from attnlab.data.batches import TaskData
from attnlab.errors import BadInput
from attnlab.files import check_plain
from attnlab.probes.base import Probe
from attnlab.runs.run_directory import RERUN, RunDirectory
from attnlab.runs.settings import Settings, differences, flat
from attnlab.training.checkpoints import read_checkpoint
from attnlab.training.lightning_module import TaskModule

AVERAGES = ("current_model_state", "averaging_state")  # of Lightning's WeightAveraging
DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


def check_checkpoints(directory: RunDirectory) -> None:
    """Refuse, by BadInput, a damaged last.ckpt or best.ckpt; either may be missing."""
    for file in (directory.last_checkpoint, directory.last_checkpoint.with_name("best.ckpt")):
        try:
            if file.exists():
                read_checkpoint(file)
        except BadInput as error:
            raise BadInput(f"{error}; {RERUN}, or delete the file") from error


def read_resumable(
    directory: RunDirectory, settings: Settings, corpus: TaskData
) -> dict[str, Any]:
    """The checkpoint that a run resumes from; BadInput if it is damaged or of another run."""
    file = directory.last_checkpoint
    check_checkpoints(directory)  # best.ckpt is kept unless a later loss is lower
    checkpoint, differing, trained_on = read_compared(file, settings)
    if differing:
        raise BadInput(
            f"{file} belongs to another configuration ({', '.join(differing[:4])}); {RERUN}"
        )
    if trained_on != corpus.sha256:
        raise BadInput(f"{file} was trained on data other than the current {corpus.name}; {RERUN}")
    return checkpoint


def read_compared(file: Path, settings: Settings) -> tuple[dict[str, Any], list[str], Any]:
    """A checkpoint, the names of the settings that differ in it, and the SHA-256 of its corpus."""
    checkpoint = read_checkpoint(file)
    recipe = checkpoint["attnlab"]["recipe"]
    try:
        check_plain(recipe)
        # Only compared: the run is built from the settings of its command.
        differing = differences(recipe["config"], settings)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{file} does not say which run it belongs to; {RERUN}") from None
    if type(checkpoint.get("global_step")) is not int:
        raise BadInput(f"{file} does not say its step; {RERUN}")
    return checkpoint, differing, recipe.get("corpus_sha256")


def prepare_resume(checkpoint: dict[str, Any], lit: TaskModule, trainer: L.Trainer) -> None:
    """Refuse, by BadInput, a checkpoint with parts that are missing, malformed, or of different
    steps. Lightning restores what it finds and starts other parts from zero without a warning."""
    # Lightning loads weights before it converts the module, which would round those in 64-true.
    lit.to(DTYPES.get(str(trainer.precision)))
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    part = ""
    try:
        part, step = "global_step", checkpoint["global_step"]
        if not 0 <= step <= trainer.max_steps:
            raise ValueError(f"{step!r} is not between 0 and trainer.max_steps")
        part = "epoch"
        if checkpoint["epoch"] not in (0, 1):
            raise ValueError(f"{checkpoint['epoch']!r} must be 0 or 1")
        averages = any(isinstance(callback, WeightAveraging) for callback in callbacks)
        for part in AVERAGES:
            if (part in checkpoint) != averages:
                raise ValueError("it is missing" if averages else "no callback has written it")
        for part in ("state_dict", *(AVERAGES[:1] if averages else ())):
            check_form(dict(checkpoint[part]), lit.state_dict())
        part = "loops"
        _check_loops(checkpoint["loops"], trainer, step)
        part = "callbacks"
        _check_callbacks(checkpoint["callbacks"], callbacks)
        part = "optimizer_states or lr_schedulers"
        _check_optimizer(checkpoint, lit, trainer)
        part, losses = "val_losses", checkpoint["attnlab"]["val_losses"]
        if any(type(s) is not int or type(x) is not float or s > step for s, x in losses.items()):
            raise ValueError("it must map steps to losses")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        missing = " is missing" if isinstance(error, KeyError) else ""
        raise BadInput(
            f"the checkpoint of step {checkpoint.get('global_step')} cannot be resumed from, "
            f"{part}: {error}{missing}; {RERUN}"
        ) from error


def check_form(found: Any, expected: Any, name: str = "") -> None:
    """Refuse, by a ValueError that names the place, other keys, types, shapes or dtypes."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            have = found.keys() if isinstance(found, dict) else set()
            differing = sorted(map(str, have ^ expected.keys()))
            raise ValueError(f"{name or 'keys'}: differs in {', '.join(differing[:4])}")
        for key, value in expected.items():
            check_form(found[key], value, f"{name}.{key}".lstrip("."))
    elif isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            raise ValueError(f"{name}: must have {len(expected)} entries")
        for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            check_form(ours, theirs, f"{name}.{i}".lstrip("."))
    elif isinstance(expected, Tensor):
        form = f"{tuple(expected.shape)} {expected.dtype}"
        given = f"{tuple(found.shape)} {found.dtype}" if isinstance(found, Tensor) else str(found)
        if given != form:
            raise ValueError(f"{name}: {given} must be {form}")
    elif isinstance(found, bool) != isinstance(expected, bool) or (
        isinstance(expected, int | float) and not isinstance(found, int | float)
    ):
        raise ValueError(f"{name}: {found!r} must be a {type(expected).__name__}")


def _check_loops(loops: dict[str, Any], trainer: L.Trainer, step: int) -> None:
    """Check Lightning's counters, each of which follows from the step."""
    found = flat(loops["fit_loop"])
    check_form(found, flat(trainer.fit_loop.state_dict()))
    accumulate = trainer.accumulate_grad_batches
    batches = found["epoch_loop.batch_progress.total.ready"]
    if not step * accumulate <= batches < (step + 1) * accumulate:
        raise ValueError(f"{batches} batches do not make {step} steps")
    counter = "epoch_loop.batch_progress.current"
    allowed = {
        "epoch_loop.automatic_optimization": {step},
        "epoch_loop.scheduler_progress": {step},
        # Lightning takes the index of the next batch, which seeds dropout, from "ready".
        **{f"{counter}.{part}": {batches} for part in ("ready", "started", "processed")},
        f"{counter}.completed": {batches, batches - 1},  # the last one may not be completed yet
        "epoch_loop.state_dict._batches_that_stepped": {step, step - 1},
        "epoch_loop.manual_optimization": {0, 1},
        "epoch_progress": {0, 1},
    }
    for name, count in found.items():
        same = name.replace("batch_progress.total", "batch_progress.current")
        for part, counts in allowed.items():
            if same.startswith(part) and type(count) is int and count not in counts:
                raise ValueError(f"{name} = {count} does not belong to step {step}")


def _check_callbacks(found: dict[str, Any], callbacks: list[L.Callback]) -> None:
    """Check that each callback finds its state; a run may resume with other probes."""
    for callback in callbacks:
        key, state = callback.state_key, callback.state_dict()
        if not state or (isinstance(callback, Probe) and key not in found):
            continue
        if found[key].keys() != state.keys():
            raise ValueError(f"{key} must have {', '.join(state)}")
    if found["Divergence"]["bad_step"] != -1:
        raise ValueError("Divergence says that the run diverged")


def _check_optimizer(checkpoint: dict[str, Any], lit: TaskModule, trainer: L.Trainer) -> None:
    """Compare with the optimizer of a copy of the model, after a step of zero gradients."""
    net, step = deepcopy(lit.net), checkpoint["global_step"]
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer, schedule = lit.optim(net, trainer.max_steps)
    if step:
        optimizer.step()
        schedule.step()
    check_form(checkpoint["optimizer_states"], [optimizer.state_dict()])
    check_form(checkpoint["lr_schedulers"], [schedule.state_dict()])
    (found,) = checkpoint["lr_schedulers"]
    if (found["last_epoch"], found["base_lrs"]) != (step, schedule.state_dict()["base_lrs"]):
        raise ValueError(f"the schedule is at step {found['last_epoch']}")
    rates = found["_last_lr"]  # which only the schedule itself can check, unless it is a function
    if isinstance(schedule, LambdaLR):
        rates = learning_rates(schedule, step)
    (states,) = checkpoint["optimizer_states"]
    groups = param_groups(states), param_groups(optimizer.state_dict())
    for rate, group, expected in zip(rates, *groups, strict=True):
        if not math.isclose(group["lr"], rate):
            raise ValueError(f"the learning rate {group['lr']} must be {rate} at step {step}")
        if {**group, "lr": 0} != {**expected, "lr": 0}:
            raise ValueError("the settings of a parameter group differ")
    moments = [x for part in _parts(states) for x in part["state"].values()]
    counts = {float(x["step"]) for x in moments if "step" in x}
    if counts - {float(step)}:
        raise ValueError(f"the optimizer is at step {max(counts):.0f}")


def learning_rates(schedule: LambdaLR, step: int) -> list[float]:
    """The learning rates of the parameter groups after so many steps."""
    pairs = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    return [float(base) * factor(step) for base, factor in pairs]


def _parts(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of the optimizers in a `Together`, or of the one optimizer."""
    return list(state.get("parts", [state]))


def param_groups(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameter groups in the state of an optimizer, of all parts of a `Together`."""
    return [group for part in _parts(state) for group in part["param_groups"]]
