"""Continue a finished or stopped run with more steps, in a run directory of its own."""

import hashlib
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from omegaconf import DictConfig
from torch.optim.lr_scheduler import LambdaLR

from attnlab.errors import BadInput
from attnlab.files import read_file, write_atomically
from attnlab.training.callbacks import AtomicCheckpointIO
from attnlab.training.lightning_module import TaskData, TaskModule
from attnlab.training.resume import parameter_groups, read_run_checkpoint
from attnlab.training.run_directory import RunDirectory, differences

# Settings in which a continued run may differ, alone or with all keys below them: the steps that
# are done depend on none of them but through the learning rate.
FREE = (
    *("continue_from", "checkpoint_every", "callbacks"),
    *("trainer.max_steps", "trainer.min_steps", "trainer.max_time", "trainer.val_check_interval"),
    *("optim.min_lr", "optim.warmup_steps", "optim.decay"),
)


@dataclass(frozen=True)
class EarlierRun:
    """The run that another one continues.

    Args:
        directory: of the run.
        checkpoint: its last one.
        sha256: of its weights, which belongs to the identity of the continued run.
    """

    directory: RunDirectory
    checkpoint: dict[str, Any]
    sha256: str

    @property
    def record(self) -> dict[str, Any]:
        """What metrics.json says of it."""
        step = self.checkpoint["global_step"]
        return {"run": str(self.directory.path), "step": step, "sha256": self.sha256}


def read_earlier_run(cfg: DictConfig, corpus: TaskData) -> EarlierRun:
    """The run that `continue_from` names.

    Args:
        cfg: the composed configuration of the run that continues it.
        corpus: its data.

    Raises:
        BadInput: there is no such run, it has not ended, or its steps would have been others with
            this configuration.
    """
    directory = RunDirectory(Path(str(cfg.continue_from)).expanduser())
    name = f"continue_from = {cfg.continue_from}"
    if not directory.status_file.exists():
        raise BadInput(f"{name} is not a run directory: it has no status.json")
    status = directory.status()["status"]
    if status not in ("finished", "stopped"):
        raise BadInput(f"{name} is {status}; only a finished or stopped run can be continued")
    checkpoint = read_run_checkpoint(directory.last_checkpoint)
    recipe, step = checkpoint["attnlab"]["recipe"], checkpoint["global_step"]
    differing = [
        key
        for key in differences(recipe["config"], cfg)
        if not any(f"{key}.".startswith(f"{free}.") for free in FREE)
    ]
    if differing:
        raise BadInput(
            f"{name} has another configuration ({', '.join(differing[:4])}); repeat its settings "
            f"and change only {', '.join(FREE[1:])}"
        )
    if recipe.get("corpus_sha256") != corpus.sha256:
        raise BadInput(f"{name} was trained on other data than {corpus.name} is now")
    if cfg.trainer.max_steps <= step:
        raise BadInput(
            f"trainer.max_steps = {cfg.trainer.max_steps} must be more than the {step} steps that "
            f"{cfg.continue_from} has done"
        )
    digest = hashlib.sha256()
    for x in checkpoint["state_dict"].values():
        digest.update(x.flatten().view(torch.uint8).numpy().tobytes())
    return EarlierRun(directory, checkpoint, digest.hexdigest())


def continued(earlier: EarlierRun, lit: TaskModule, trainer: L.Trainer) -> dict[str, Any]:
    """The checkpoint with which a run begins that continues an earlier one.

    It is the earlier run's last checkpoint with the recipe of the new run and the learning rate of
    the new schedule at this step. Callbacks that the earlier run did not have start anew.

    Raises:
        BadInput: the schedule cannot be moved to the step.
    """
    checkpoint = deepcopy(earlier.checkpoint)
    checkpoint["attnlab"]["recipe"] = lit.recipe
    new = {c.state_key: c.state_dict() for c in trainer.callbacks}  # type: ignore[attr-defined]
    states = {key: state for key, state in new.items() if state} | checkpoint["callbacks"]
    checkpoint["callbacks"] = states | {"RunCheckpoints": new["RunCheckpoints"]}
    # The last batch of the earlier run is not the last one any more.
    checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False
    _, schedule = lit.optim(deepcopy(lit.net), trainer.max_steps)
    if not isinstance(schedule, LambdaLR):
        raise BadInput(
            f"continue_from needs a schedule that is a function of the step, torch's LambdaLR; "
            f"this is {type(schedule).__name__}"
        )
    factors = [factor(checkpoint["global_step"]) for factor in schedule.lr_lambdas]
    rates = [base * x for base, x in zip(schedule.base_lrs, factors, strict=True)]
    checkpoint["lr_schedulers"][0]["_last_lr"] = rates
    (state,) = checkpoint["optimizer_states"]
    for group, rate in zip(parameter_groups(state), rates, strict=True):
        group["lr"] = rate
    return checkpoint


def begin_continued(
    checkpoint: dict[str, Any], earlier: EarlierRun, directory: RunDirectory, max_steps: int
) -> None:
    """Write the first checkpoint of a continued run, and say which learning rate it gets.

    Args:
        checkpoint: as `continued` returns it.
        earlier: the run that is continued.
        directory: of the new run.
        max_steps: of the new run.
    """
    best = earlier.directory.last_checkpoint.with_name("best.ckpt")
    if best.exists():
        write_atomically(directory.last_checkpoint.with_name(best.name), read_file(best))
    AtomicCheckpointIO().save_checkpoint(checkpoint, directory.last_checkpoint)
    before, now = (x["lr_schedulers"][0]["_last_lr"][0] for x in (earlier.checkpoint, checkpoint))
    print(
        f"Continuing {earlier.directory.path} from step {checkpoint['global_step']} to "
        f"{max_steps}, with the schedule of {max_steps} steps: the learning rate, last "
        f"{before:.3g}, is now {now:.3g}."
    )
