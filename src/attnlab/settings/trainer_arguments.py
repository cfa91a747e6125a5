"""What a run does with each argument of Lightning's Trainer, and which callbacks it refuses.

One table: the advice where an argument is typed, the refusal, and the table in docs/training.md
come from it. `TrainerSettings` has the types of those with a narrower range than Lightning's.
"""

from collections.abc import Callable
from typing import NamedTuple

from attnlab.errors import BadInput
from attnlab.settings.roles import Settings


class Argument(NamedTuple):
    """An argument of the Trainer.

    `says` is what it does or, of one that a run cannot have, why not. Of such an argument,
    `allowed` are the values that change nothing. `choices` are the words that another one may be.
    `ours` is one that attnlab gives.
    """

    says: str
    allowed: tuple[float | bool | None, ...] | None = None
    choices: tuple[str, ...] = ()
    ours: bool = False


DEVICES = "[devices and precision](#devices-and-precision)"
IN_STEPS = "in steps of the optimizer, however many batches a step has"
LIKE_LIGHTNING = "as in Lightning"
NO_CHANGE = "as in Lightning; the result on a CPU stays the same"
OURS = "given by attnlab; see the groups callbacks and logger"
NO_EPOCHS = "a run counts steps, not epochs; use trainer.max_steps"
ONE_BATCH_A_STEP = "the batch of step n is a function of seed and n; use trainer.max_steps"
NO_LOOP = "attnlab only trains and validates"
ARGUMENTS = {
    "accelerator": Argument(DEVICES),
    "devices": Argument(DEVICES),
    "strategy": Argument(DEVICES),
    "precision": Argument(DEVICES),
    "max_steps": Argument(IN_STEPS),
    "min_steps": Argument(IN_STEPS),
    "val_check_interval": Argument(IN_STEPS),
    "log_every_n_steps": Argument(IN_STEPS),
    "max_time": Argument("ends a run, such as `+trainer.max_time={minutes:5}`"),
    "accumulate_grad_batches": Argument(LIKE_LIGHTNING),
    "gradient_clip_val": Argument(LIKE_LIGHTNING),
    "gradient_clip_algorithm": Argument(LIKE_LIGHTNING, choices=("norm", "value")),
    "limit_val_batches": Argument(
        "the loss is that of the predictions that were read; `val_share` in `metrics.json` says "
        "how many of all"
    ),
    "deterministic": Argument(NO_CHANGE),
    "benchmark": Argument(NO_CHANGE),
    "detect_anomaly": Argument(NO_CHANGE),
    "inference_mode": Argument(NO_CHANGE),
    "profiler": Argument(NO_CHANGE, choices=("simple", "advanced", "pytorch", "xla")),
    "sync_batchnorm": Argument(NO_CHANGE),
    "enable_autolog_hparams": Argument(NO_CHANGE),
    "enable_model_summary": Argument(NO_CHANGE),
    "enable_progress_bar": Argument(NO_CHANGE),
    "callbacks": Argument(OURS, ours=True),
    "logger": Argument(OURS, ours=True),
    "plugins": Argument(OURS, ours=True),
    "default_root_dir": Argument(OURS, ours=True),
    "use_distributed_sampler": Argument(OURS, ours=True),
    "max_epochs": Argument(NO_EPOCHS, (None, -1)),
    "min_epochs": Argument(NO_EPOCHS, (None, 0)),
    "limit_train_batches": Argument(ONE_BATCH_A_STEP, (None,)),
    "reload_dataloaders_every_n_epochs": Argument(ONE_BATCH_A_STEP, (0,)),
    "overfit_batches": Argument(ONE_BATCH_A_STEP + ", or a short text", (0, 0.0)),
    "fast_dev_run": Argument(
        "it drops checkpoints and loggers; use trainer.max_steps=1 logger=none", (False, 0)
    ),
    "check_val_every_n_epoch": Argument(
        "validations are counted in steps; use trainer.val_check_interval", (None,)
    ),
    "num_sanity_val_steps": Argument(
        "it would be recorded as a validation; the first one is after val_check_interval", (0,)
    ),
    "limit_test_batches": Argument(NO_LOOP, (None,)),
    "limit_predict_batches": Argument(NO_LOOP, (None,)),
    "num_nodes": Argument("attnlab trains on one machine; use trainer.devices", (1,)),
    "enable_checkpointing": Argument(
        "a run resumes from its checkpoints; use checkpoint_every for fewer of them", (None, True)
    ),
    "barebones": Argument("it turns off the callbacks that a run consists of", (False,)),
    "model_registry": Argument("attnlab uploads no models", (None,)),
}
OF_ATTNLAB = [name for name, argument in ARGUMENTS.items() if argument.ours]

OWN_SCHEDULE = "set optim.lr, or sweep over it with -m optim.lr=1e-3,3e-3,1e-2"
CHANGES_WEIGHTS = "it changes the weights behind the optimizer; write a layer or an optimizer"
# Callbacks that would change what is trained or measured without a trace in the result, or do
# nothing. All others work.
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
    """Raise BadInput for an argument of the Trainer that a run cannot have, or a value that leaves
    no result. Of the types of values, `bind` judges."""
    for name, value in trainer.items():
        argument = ARGUMENTS.get(name)
        if argument is None:
            continue  # `bind` says so, with the name that was probably meant
        if argument.ours:
            raise BadInput(f"trainer.{name} is {argument.says}")
        if argument.allowed is not None and value not in argument.allowed:
            raise BadInput(f"trainer.{name} = {value} is not possible: {argument.says}")
        if argument.choices and value not in (None, *argument.choices):
            words = ", ".join(argument.choices)
            raise BadInput(f"trainer.{name} = {value} is unknown; it is one of {words}, or null")
    limit = number_in(trainer, "limit_val_batches", 1)
    if limit <= 0:
        raise BadInput(
            f"trainer.limit_val_batches = {limit} leaves no validation, and so no result; use 1 "
            "or more, or a fraction such as 0.1"
        )
    clip = number_in(trainer, "gradient_clip_val", 1)
    if clip < 0:
        raise BadInput(f"trainer.gradient_clip_val = {clip} must be 0 or more, or null")
    steps = number_in(trainer, "max_steps", 1)
    least = number_in(trainer, "min_steps", 0)
    if least > steps:
        raise BadInput(f"trainer.min_steps = {least} is above trainer.max_steps = {steps}")


def check_class(made: Callable[..., object]) -> None:
    """Raise BadInput for a class of Lightning that is refused, or one that inherits from it."""
    if not isinstance(made, type):
        return  # a function that makes a callback
    for cls in made.__mro__:
        if cls.__module__.startswith("lightning.pytorch.") and cls.__name__ in CALLBACKS:
            because = CALLBACKS[cls.__name__]
            raise BadInput(f"the callback {made.__name__} is not possible: {because}")


def number_in(trainer: Settings, name: str, otherwise: int) -> float:
    """An argument that is a number; another value instead where it is none."""
    value = trainer.get(name)
    return value if isinstance(value, int | float) else otherwise


def table_of_arguments() -> str:
    """The table of docs/training.md: a row for the arguments of which the same is said."""
    names: dict[str, list[str]] = {}
    for name, argument in ARGUMENTS.items():
        refused = argument.allowed is not None
        says = f"refused: {argument.says}" if refused else argument.says
        values = f" ({', '.join(argument.choices)})" if argument.choices else ""
        names.setdefault(says, []).append(f"`{name}`{values}")
    rows = [f"| {', '.join(each)} | {says} |" for says, each in names.items()]
    return "\n".join(["| argument | |", "|---|---|", *rows])
