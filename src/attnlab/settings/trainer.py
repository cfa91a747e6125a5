"""Lightning's Trainer, with the arguments of a run in its terms."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from attnlab.settings.bind import bind
from attnlab.settings.roles import Settings
from attnlab.settings.trainer_arguments import OF_ATTNLAB, TrainerSettings, check_arguments

if TYPE_CHECKING:  # Lightning takes most of a start, and typos need none of it
    import lightning.pytorch as L


def bound_trainer(trainer: TrainerSettings) -> "Callable[..., L.Trainer]":
    """Lightning's Trainer with its arguments; BadInput for one that a run cannot have."""
    check_arguments(trainer.plain())
    return bind(for_lightning(trainer), "trainer", supplied=OF_ATTNLAB)


def for_lightning(trainer: TrainerSettings) -> Settings:
    """The settings of the trainer in Lightning's terms: a precision, and batches for steps."""
    batches = trainer.val_check_interval * trainer.accumulate_grad_batches
    arguments = trainer.plain()
    precision: str = trainer.precision
    if precision == "auto":
        on_gpu = torch.cuda.is_available() and arguments["accelerator"] in ("auto", "gpu", "cuda")
        # Where it is emulated, as on a T4, bf16 is slower than fp32.
        fast = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16-mixed" if fast else "32-true"
    if arguments.get("min_steps"):
        # Lightning would also wait for the end of an epoch, and there is only one.
        arguments["min_epochs"] = 0
    return arguments | {"precision": precision, "val_check_interval": batches}
