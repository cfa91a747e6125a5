"""Optimisers with their schedules."""

import math
from collections.abc import Sequence

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from attnlab.errors import BadInput


def adamw(
    net: nn.Module,
    max_steps: int,
    *,
    lr: float,
    min_lr: float,
    warmup_steps: int,
    betas: Sequence[float],
    weight_decay: float,
) -> tuple[AdamW, LambdaLR]:
    """AdamW (Loshchilov and Hutter 2019), weight decay on matrices and embeddings only.

    Args:
        net: whose parameters are trained.
        max_steps: where the schedule ends.
        lr: the largest learning rate, after the warm-up.
        min_lr: the learning rate of the last step.
        warmup_steps: steps of linear warm-up, 0 for none.
        betas: decay of the two moments.
        weight_decay: decoupled.

    Returns:
        the optimiser and its schedule, which is stepped once a step.

    Raises:
        BadInput: a number is out of its range.
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
    return optimizer, schedule(optimizer, max_steps, warmup_steps, floor=min_lr / lr)


def schedule(optimizer: Optimizer, max_steps: int, warmup_steps: int, floor: float) -> LambdaLR:
    """Multiply every group's learning rate by `cosine` at each step."""
    return LambdaLR(optimizer, lambda step: cosine(step, max_steps, warmup_steps, floor))


def cosine(step: int, max_steps: int, warmup_steps: int, floor: float) -> float:
    """Share of the learning rate at a step: linear warm-up to 1, then half a cosine to `floor`."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def check(
    lr: float, min_lr: float, warmup_steps: int, betas: Sequence[float], weight_decay: float
) -> None:
    """Refuse numbers of `conf/optim` that are out of their range."""
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
