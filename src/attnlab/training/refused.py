"""The callbacks of Lightning that a run of attnlab refuses.

Each would change what is trained or measured without a trace in the result, or do nothing. All
others work. Arguments of the Trainer are in `attnlab.settings.trainer_arguments`.
"""

from collections.abc import Callable, Iterable
from functools import partial

import lightning.pytorch as L
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from attnlab.errors import BadInput
from attnlab.settings.trainer_arguments import NO_LOOP

MONITORED = "val/loss"  # the only value that attnlab gives to callbacks


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
