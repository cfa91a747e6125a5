"""Muon on the matrices inside the blocks, AdamW on all the rest, as one optimizer."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from attnlab.errors import BadInput
from attnlab.training.optimizers import Decay, check, cosine, schedule


class Together(Optimizer):
    """Several optimizers that are stepped, scheduled and saved as one.

    Its parameter groups are those of its parts, so that a schedule reaches each of them.

    Args:
        parts: optimizers of disjoint parameters.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every part; the closure is called once, before."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of the parts, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the states of the parts."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share()  # the parts have new groups


def muon(
    net: nn.Module,
    max_steps: int,
    *,
    lr: float,
    min_lr: float,
    warmup_steps: int,
    betas: Sequence[float],
    weight_decay: float,
    adamw_lr: float,
    momentum: float,
    ns_steps: int,
    decay: Decay = cosine,
) -> tuple[Optimizer, LambdaLR]:
    """Muon (Jordan et al. 2024) on the matrices of the blocks; AdamW on embeddings and vectors.

    Muon's update is orthogonal: all singular values near 1. A factor 0.2 sqrt(max(rows, columns))
    gives it the size of AdamW's (Liu et al. 2025, section 2.2).

    Args:
        net, max_steps, warmup_steps: as for `attnlab.training.optimizers.adamw`.
        lr: Muon's largest learning rate, after the warm-up.
        min_lr: Muon's learning rate of the last step; AdamW's falls by the same factor.
        betas: decay rates of AdamW's two moments.
        weight_decay: decoupled, on Muon's matrices only.
        adamw_lr: AdamW's largest learning rate.
        momentum: of Muon, with Nesterov's correction.
        ns_steps: Newton-Schulz iterations of the orthogonalization.
        decay: how the rates fall, `attnlab.training.optimizers.cosine` or `linear`.

    Raises:
        BadInput: a number is out of range, or this PyTorch does not have Muon.
    """
    check(lr, min_lr, warmup_steps, betas, weight_decay)
    _check(adamw_lr, momentum, ns_steps)
    matrices, others = split(net)
    make_muon = partial(torch.optim.Muon, momentum=momentum, ns_steps=ns_steps)
    parts: list[Optimizer] = []
    if matrices:
        parts.append(make_muon(matrices, lr, weight_decay, adjust_lr_fn="match_rms_adamw"))
    if others:
        first, second = betas
        parts.append(AdamW(others, adamw_lr, (first, second), weight_decay=0.0, fused=True))
    optimizer = Together(parts)
    return optimizer, schedule(optimizer, max_steps, warmup_steps, min_lr / lr, decay)


def split(net: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The weights of the linear maps inside the blocks, and all other parameters."""
    parts: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, p in net.named_parameters():
        parts[p.ndim == 2 and "blocks." in name and name.endswith(".weight")].append(p)
    return parts[True], parts[False]


def _check(adamw_lr: float, momentum: float, ns_steps: int) -> None:
    if not hasattr(torch.optim, "Muon"):
        raise BadInput(f"optim=muon needs PyTorch 2.9 or later; this is {torch.__version__}")
    if not (0 < adamw_lr < math.inf):
        raise BadInput(f"optim.adamw_lr = {adamw_lr} must be a positive number")
    if not 0 <= momentum < 1:
        raise BadInput(f"optim.momentum = {momentum} must be in [0, 1)")
    if not 1 <= ns_steps < 100:
        raise BadInput(f"optim.ns_steps = {ns_steps} must be from 1 to 99")
