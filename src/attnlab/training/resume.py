"""Reads the checkpoint from which a run resumes, and checks it as a whole."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from attnlab.data.batches import TaskData
from attnlab.errors import BadInput
from attnlab.files import check_plain
from attnlab.probes.base import Probe
from attnlab.runs.run_directory import RERUN, RunDirectory
from attnlab.runs.settings import Settings, differences, flat
from attnlab.training.checkpoints import read_checkpoint, versions
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
) -> dict[str, Any] | None:
    """The checkpoint that a run resumes from, if there is one; BadInput if it is damaged or of
    another run."""
    file = directory.last_checkpoint
    if not file.exists():
        return None
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
    if checkpoint["attnlab"].get("versions") != versions():
        current = ", ".join(f"{name} {number}" for name, number in versions().items())
        raise BadInput(
            f"{file} was written by other versions than {current}, which may compute other bits; "
            f"{RERUN}, or init_from= to start from its weights"
        )
    return checkpoint, differing, recipe.get("corpus_sha256")


def prepare_resume(checkpoint: dict[str, Any], lit: TaskModule, trainer: L.Trainer) -> None:
    """Refuse, by BadInput, a checkpoint with parts that are missing, malformed, or of different
    steps. Lightning restores what it finds and starts other parts from zero without a warning."""
    # Lightning loads weights before it converts the module, which would round those in 64-true.
    lit.to(DTYPES.get(str(trainer.precision)))
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    averages = any(isinstance(callback, WeightAveraging) for callback in callbacks)
    part, step = "global_step", checkpoint["global_step"]
    try:
        if not 0 <= step <= trainer.max_steps:
            raise ValueError(f"{step!r} is not between 0 and trainer.max_steps")
        for part in AVERAGES:
            if (part in checkpoint) != averages:
                raise ValueError("it is missing" if averages else "no callback has written it")
        optimizer, schedule = states_after(step, lit, trainer)
        expected = {"state_dict": lit.state_dict(), "optimizer_states": [optimizer]}
        expected |= {"lr_schedulers": [schedule]}
        expected |= {AVERAGES[0]: lit.state_dict()} if averages else {}
        for part, form in expected.items():
            check_form(checkpoint[part], form)
        part = "loops or epoch"
        _check_loops(checkpoint["loops"]["fit_loop"], checkpoint["epoch"], trainer, step)
        part = "callbacks"
        _check_callbacks(checkpoint["callbacks"], callbacks)
        part, losses = "val_losses", checkpoint["attnlab"]["val_losses"]
        if any(type(s) is not int or type(x) is not float or s > step for s, x in losses.items()):
            raise ValueError("it must map steps to losses")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        missing = " is missing" if isinstance(error, KeyError) else ""
        raise BadInput(
            f"the checkpoint of step {step} cannot be resumed from, {part}: {error}{missing}; "
            f"{RERUN}"
        ) from error


def states_after(
    step: int, lit: TaskModule, trainer: L.Trainer
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of optimizer and schedule after so many steps, with zero gradients."""
    net = deepcopy(lit.net)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer, schedule = lit.optim(net, trainer.max_steps)
    if step:
        optimizer.step()
    for _ in range(step):
        schedule.step()
    state = optimizer.state_dict()
    for part in parts_of(state):
        for moments in part["state"].values():
            if "step" in moments:
                moments["step"] = moments["step"] * step
    return state, schedule.state_dict()


def parts_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of the optimizers in a `Together`, or of the one optimizer."""
    return list(state.get("parts", [state]))


def check_form(value: Any, expected: Any, name: str = "") -> None:
    """Refuse, by a ValueError that names the place, other keys or plain values, and tensors of
    another shape or dtype."""
    if isinstance(expected, dict):
        keys = value.keys() if isinstance(value, dict) else set()
        if keys != expected.keys() or not isinstance(value, dict):
            differing = sorted(map(str, keys ^ expected.keys()))
            raise ValueError(f"{name or 'keys'}: differs in {', '.join(differing[:4])}")
        for key, part in expected.items():
            check_form(value[key], part, f"{name}.{key}".lstrip("."))
    elif isinstance(expected, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(expected):
            raise ValueError(f"{name}: must have {len(expected)} entries")
        for i, (entry, part) in enumerate(zip(value, expected, strict=True)):
            check_form(entry, part, f"{name}.{i}".lstrip("."))
    elif isinstance(expected, Tensor):
        form = f"{tuple(expected.shape)} {expected.dtype}"
        stored = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else str(value)
        if stored != form or (name.endswith(".step") and value != expected):
            raise ValueError(f"{name}: {stored} must be {form}, of the same step")
    elif type(value) is not type(expected) or value != expected:
        raise ValueError(f"{name}: {value!r} must be {expected!r}")


def _check_loops(loops: dict[str, Any], epoch: int, trainer: L.Trainer, step: int) -> None:
    """Check Lightning's counters, each of which follows from the step."""
    counts, expected = flat(loops), flat(trainer.fit_loop.state_dict())
    if counts.keys() != expected.keys():
        raise ValueError(f"the counters must be {', '.join(expected)}")
    # The index of the next batch, which seeds dropout.
    ready = counts["epoch_loop.batch_progress.current.ready"]
    if ready // trainer.accumulate_grad_batches != step or epoch not in (0, 1):
        raise ValueError(f"{ready} batches in epoch {epoch} do not make {step} steps")
    for name, count in counts.items():
        once = name.startswith(("epoch_progress", "epoch_loop.manual_optimization"))
        # A counter of what is completed may be one behind.
        allowed = (0, 1) if once else (step, step - 1, ready, ready - 1)
        other = type(count) is int and count not in allowed and ".val_loop." not in name
        if other or type(count) is not type(expected[name]):
            raise ValueError(f"{name} = {count} does not belong to step {step}")


def _check_callbacks(states: dict[str, Any], callbacks: list[L.Callback]) -> None:
    """Check that each callback has its state; a run may resume with other probes."""
    for callback in callbacks:
        key, state = callback.state_key, callback.state_dict()
        if not state or (isinstance(callback, Probe) and key not in states):
            continue
        if states[key].keys() != state.keys():
            raise ValueError(f"{key} must have {', '.join(state)}")
    if states["Divergence"]["bad_step"] != -1:
        raise ValueError("Divergence says that the run diverged")
