"""What Lightning offers and a run of attnlab refuses: arguments of its Trainer, and callbacks.

Each would change what is trained or measured without a trace in the result, or do nothing. All
other arguments and callbacks work; the table in docs/training.md says how.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import lightning.pytorch as L
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from attnlab.errors import BadInput
from attnlab.runs.settings import Settings

MONITORED = "val/loss"  # the only value that attnlab gives to callbacks


class Refused(NamedTuple):
    """An argument of the Trainer: the values that change nothing, and a reason for all others."""

    allowed: tuple[float | bool | None, ...]
    because: str


NO_EPOCHS = "a run counts steps, not epochs; use trainer.max_steps"
ONE_BATCH_A_STEP = "the batch of step n is a function of seed and n; use trainer.max_steps"
NO_LOOP = "attnlab only trains and validates"
ARGUMENTS = {
    "num_nodes": Refused((1,), "attnlab trains on one machine; use trainer.devices"),
    "fast_dev_run": Refused(
        (False, 0), "it drops checkpoints and loggers; use trainer.max_steps=1 logger=none"
    ),
    "max_epochs": Refused((None, -1), NO_EPOCHS),
    "min_epochs": Refused((None, 0), NO_EPOCHS),
    "limit_train_batches": Refused((None,), ONE_BATCH_A_STEP),
    "overfit_batches": Refused((0, 0.0), ONE_BATCH_A_STEP + ", or a short text"),
    "limit_test_batches": Refused((None,), NO_LOOP),
    "limit_predict_batches": Refused((None,), NO_LOOP),
    "check_val_every_n_epoch": Refused(
        (None,), "validations are counted in steps; use trainer.val_check_interval"
    ),
    "num_sanity_val_steps": Refused(
        (0,), "it would be recorded as a validation; the first one is after val_check_interval"
    ),
    "enable_checkpointing": Refused(
        (None, True), "a run resumes from its checkpoints; use checkpoint_every for fewer of them"
    ),
    "barebones": Refused((False,), "it turns off the callbacks that a run consists of"),
    "reload_dataloaders_every_n_epochs": Refused((0,), ONE_BATCH_A_STEP),
    "model_registry": Refused((None,), "attnlab uploads no models"),
}
OWN_SCHEDULE = "set optim.lr, or sweep over it with -m optim.lr=1e-3,3e-3,1e-2"
CHANGES_WEIGHTS = "it changes the weights behind the optimizer; write a layer or an optimizer"
CALLBACKS = {
    "BackboneFinetuning": "the model has no backbone; use init_from",
    "BaseFinetuning": "it changes what is trained; write an optimizer that leaves weights out",
    "BasePredictionWriter": NO_LOOP,
    "BatchSizeFinder": "it changes the batches; set data.batch_size",
    "GradientAccumulationScheduler": "steps would differ; set trainer.accumulate_grad_batches",
    "LearningRateFinder": OWN_SCHEDULE,
    "ModelPruning": CHANGES_WEIGHTS,
    "SpikeDetection": "it leaves out batches; look at the gradients that probes=default logs",
    "StochasticWeightAveraging": "it averages after the last validation; use callbacks=ema",
    "ThroughputMonitor": "metrics.json has tokens_per_second; it reads batches of another form",
}


def check_arguments(trainer: Settings) -> None:
    """Raise BadInput for an argument of the Trainer that a run cannot have."""
    for name, (allowed, because) in ARGUMENTS.items():
        if name in trainer and trainer[name] not in allowed:
            raise BadInput(f"trainer.{name} = {trainer[name]} is not possible: {because}")
    limit = trainer.get("limit_val_batches")
    if limit is not None and limit <= 0:
        raise BadInput(
            f"trainer.limit_val_batches = {limit} leaves no validation, and so no result; use 1 "
            "or more, or a fraction such as 0.1"
        )
    clip = trainer.get("gradient_clip_val")
    if clip is not None and clip < 0:
        raise BadInput(f"trainer.gradient_clip_val = {clip} must be 0 or more, or null")
    steps = trainer["max_steps"]
    if (trainer.get("min_steps") or 0) > steps:
        raise BadInput(
            f"trainer.min_steps = {trainer['min_steps']} is above trainer.max_steps = {steps}"
        )


def make_callbacks(factories: Iterable[partial[L.Callback]], loggers: int) -> list[L.Callback]:
    """The callbacks; BadInput for one of Lightning that a run cannot have, that waits for a value
    which nothing logs, or that needs a logger where there is none."""
    made = []
    for make in factories:
        check_class(make.func)
        made.append(make_callback(make))
    # A callback of the user's may log values of its own, which others can monitor.
    closed = all(type(each).__module__.startswith(("lightning.", "attnlab.")) for each in made)
    for each in made:
        name = type(each).__name__
        if isinstance(each, EarlyStopping | ModelCheckpoint):
            monitor = each.monitor
            if closed and monitor not in (None, MONITORED):
                raise BadInput(
                    f"{name} has monitor = {monitor}, which nothing logs; use {MONITORED}"
                )
        only_logs = isinstance(each, callbacks.LearningRateMonitor | callbacks.DeviceStatsMonitor)
        if only_logs and not loggers:
            raise BadInput(f"the callback {name} needs a logger, such as logger=tensorboard")
    return made


def check_class(made: Callable[..., object]) -> None:
    """Raise BadInput for a class of Lightning that is refused, or one that inherits from it."""
    if not isinstance(made, type):
        return  # a function that makes a callback
    for cls in made.__mro__:
        if cls.__module__.startswith("lightning.pytorch.") and cls.__name__ in CALLBACKS:
            because = CALLBACKS[cls.__name__]
            raise BadInput(f"the callback {made.__name__} is not possible: {because}")


def make_callback(make: partial[L.Callback]) -> L.Callback:
    """A callback; BadInput where Lightning refuses its arguments or needs a package for it."""
    try:
        return make()
    except (MisconfigurationException, ModuleNotFoundError) as error:
        why = " ".join(str(error).split())
        raise BadInput(f"the callback {make.func.__name__} cannot be made: {why}") from error
