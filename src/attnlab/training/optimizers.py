"""Optimizers with their schedules."""

import math
from collections.abc import Callable, Sequence

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from attnlab.errors import BadInput

# Maps progress after the warm-up (0 to 1) to a fraction of the learning rate (1 to 0).
Decay = Callable[[float], float]


def cosine(progress: float) -> float:
    """Half a cosine from 1 to 0 (Loshchilov and Hutter 2017)."""
    return (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float) -> float:
    """A straight line from 1 to 0."""
    return 1 - progress


def adamw(
    net: nn.Module,
    max_steps: int,
    *,
    lr: float,
    min_lr: float,
    warmup_steps: int,
    betas: Sequence[float],
    weight_decay: float,
    decay: Decay = cosine,
) -> tuple[AdamW, LambdaLR]:
    """AdamW (Loshchilov and Hutter 2019), weight decay on matrices and embeddings only.

    Args:
        net: the model to train.
        max_steps: where the schedule ends.
        lr: the largest learning rate, after the warm-up.
        min_lr: the learning rate of the last step.
        warmup_steps: steps of linear warm-up, 0 for none.
        betas: decay rates of the two moments.
        weight_decay: decoupled.
        decay: how the rate falls, `cosine` or `linear`.

    Returns:
        the optimizer and its schedule, which is stepped after each step.

    Raises:
        BadInput: a number is out of range.
    """
    check(lr, min_lr, warmup_steps, betas, weight_decay)
    matrices = [p for p in net.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in net.parameters() if p.requires_grad and p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    first, second = betas
    optimizer = AdamW([g for g in groups if g["params"]], lr=lr, betas=(first, second), fused=True)
    floor = min_lr / lr
    return optimizer, schedule(optimizer, max_steps, warmup_steps, floor, decay)


def schedule(
    optimizer: Optimizer, max_steps: int, warmup_steps: int, floor: float, decay: Decay
) -> LambdaLR:
    """Multiply every learning rate by a linear warm-up to 1, then by `decay` down to `floor`."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
        return floor + (1 - floor) * decay(progress)

    return LambdaLR(optimizer, factor)


def check(
    lr: float, min_lr: float, warmup_steps: int, betas: Sequence[float], weight_decay: float
) -> None:
    """Refuse settings of `conf/optim` that are out of range."""
    if not (0 < lr < math.inf):
        raise BadInput(f"optim.lr = {lr} must be a positive number")
    if not min_lr >= 0:
        raise BadInput(f"optim.min_lr = {min_lr} must be at least 0")
    if warmup_steps < 0:
        raise BadInput(f"optim.warmup_steps = {warmup_steps} must be at least 0")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise BadInput(f"optim.betas = {list(betas)} must be two numbers in [0, 1)")
    if not (0 <= weight_decay < math.inf):
        raise BadInput(f"optim.weight_decay = {weight_decay} must be at least 0")
