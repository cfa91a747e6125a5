"""Which of Lightning's Trainer arguments and callbacks a run refuses, and why.

`docs/lightning.md` lists all of them with their outcome.
"""

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from attnlab.errors import BadInput, with_its_place
from attnlab.training.instantiate import build, locate

if TYPE_CHECKING:
    from lightning.pytorch import Callback

STEPS = "a run has one endless epoch of trainer.max_steps steps"
WHOLE = "a run validates on the whole validation text"
OWN = "attnlab sets it"
# Trainer argument -> (the one value that is accepted, why others are refused).
REFUSED_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "barebones": (False, "it switches off the checkpoints from which a run resumes"),
    "callbacks": (None, f"{OWN}; use callbacks= or +callbacks.NAME._target_="),
    "check_val_every_n_epoch": (None, f"{STEPS}; use trainer.val_check_interval"),
    "default_root_dir": (None, f"{OWN}; use outputs= or hydra.run.dir="),
    "enable_checkpointing": (True, "a run resumes from its checkpoint; use checkpoint_every="),
    "fast_dev_run": (False, f"{STEPS}; use trainer.max_steps=1"),
    "gradient_clip_algorithm": ("norm", "the norm of the gradient is clipped and logged"),
    "limit_predict_batches": (None, "a run does not predict"),
    "limit_test_batches": (None, "a run has no test set"),
    "limit_train_batches": (1.0, f"{STEPS}; use trainer.max_steps"),
    "limit_val_batches": (1.0, WHOLE),
    "logger": (None, f"{OWN}; use logger= or +logger.NAME._target_="),
    "max_epochs": (None, f"{STEPS}; use trainer.max_steps"),
    "min_epochs": (None, f"{STEPS}; use trainer.min_steps"),
    "model_registry": (None, "checkpoints stay in the run directory"),
    "num_sanity_val_steps": (0, WHOLE),
    "overfit_batches": (0, f"{STEPS}; use a short text as data.path"),
    "plugins": (None, f"{OWN}; checkpoints are sealed and written atomically"),
    "reload_dataloaders_every_n_epochs": (0, STEPS),
    "use_distributed_sampler": (None, f"{OWN}; each batch knows its share of the devices"),
}
# Callback -> why it is refused. Subclasses are refused, too.
REFUSED_CALLBACKS: dict[str, str] = {
    "BatchSizeFinder": "batches are a function of seed and step; use data.batch_size",
    "BasePredictionWriter": "a run does not predict",
    "GradientAccumulationScheduler": f"{STEPS}; use trainer.accumulate_grad_batches",
    "LearningRateFinder": "it changes the learning rate silently; sweep over optim.lr",
    "ModelPruning": "it renames the weights, so the checkpoint could not be loaded",
    "StochasticWeightAveraging": f"{STEPS}; use callbacks=ema",
    "BackboneFinetuning": "the model has no attribute backbone",
}


def check_arguments(trainer: DictConfig) -> None:
    """Refuse Trainer arguments that would be ignored, or break what a run promises.

    Raises:
        BadInput: the sentence names the argument and what to use instead.
    """
    for key, value in trainer.items():
        if key in REFUSED_ARGUMENTS:
            accepted, reason = REFUSED_ARGUMENTS[str(key)]
            # One batch, 1, is not 1.0, all of them.
            if value != accepted or type(value) is not type(accepted):
                raise BadInput(f"trainer.{key} = {value} is not supported: {reason}")


def make_callback(node: DictConfig, path: str) -> "Callback":
    """Build a callback, except those that would do nothing or harm.

    Args:
        node: with `_target_`.
        path: of the node in the configuration, for messages.

    Raises:
        BadInput: the sentence names the callback and what to use instead.
    """
    target = locate(str(node._target_), f"{path}._target_")
    # By name, because Lightning takes seconds to import and this module is imported earlier.
    parents = [c.__name__ for c in target.__mro__] if isinstance(target, type) else []
    for name in parents:
        if name in REFUSED_CALLBACKS:
            raise BadInput(f"{path}: {name} is not supported: {REFUSED_CALLBACKS[name]}")
    if parents[:1] == ["BaseFinetuning"]:
        raise BadInput(f"{path}: BaseFinetuning is not supported: derive a class from it")
    make = build(node, path)
    try:
        callback: Callback = make()
    except Exception as error:  # whatever a user's own class raises
        raise BadInput(f"{path} cannot be built: {with_its_place(error)}") from error
    if "Callback" not in [c.__name__ for c in type(callback).__mro__]:
        raise BadInput(f"{path} = {node._target_} must be a Lightning callback")
    return callback
