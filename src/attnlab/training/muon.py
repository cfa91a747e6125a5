"""Muon for the matrices of the blocks, beside AdamW for the rest."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from attnlab.training.optimizers import Decay, check, cosine, require, schedule


class Together(Optimizer):
    """Several optimizers of disjoint parameters that are stepped, scheduled and saved as one.

    Its parameter groups are those of its parts, so a schedule changes all of them.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)  # gives the part new groups
        self.param_groups = [group for part in self.parts for group in part.param_groups]


class Muon(Optimizer):
    """Muon (Jordan et al. 2024): each matrix moves by its orthogonalized Nesterov momentum.

    The update is orthogonal: all singular values near 1. A factor 0.2 sqrt(max(rows, columns))
    gives it the size of AdamW's (Liu et al. 2025, section 2.2). The numbers are those of
    `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`; here, matrices of one shape are
    orthogonalized together, in fewer and larger products.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        lr: float,
        weight_decay: float,
        momentum: float,
        ns_steps: int,
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(matrices, settings | {"ns_steps": ns_steps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of the matrices that have a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, matrices in shapes.items():
                nesterov = [self._nesterov(p, group["momentum"]) for p in matrices]
                updates = orthogonalize(torch.stack(nesterov), group["ns_steps"])
                rate = group["lr"] * 0.2 * math.sqrt(max(shape))
                for p, update in zip(matrices, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _nesterov(self, p: nn.Parameter, momentum: float) -> Tensor:
        assert p.grad is not None
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p.grad)
        average = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(average, momentum)


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Matrices (N, rows, columns) with singular values near 1, by Newton-Schulz iterations in bf16
    with the coefficients of Jordan et al. (2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # spectral norm at most 1
    for _ in range(steps):
        gram = x @ x.mT  # (N, R, R), R the smaller side
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


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
    """`Muon` on the matrices of the blocks, AdamW on embeddings and vectors.

    `lr` and `min_lr` are Muon's; AdamW's learning rate falls from `adamw_lr` by the same factor.
    `betas` are AdamW's; the weight decay is decoupled, on Muon's matrices only. `momentum` has
    Nesterov's correction, and `ns_steps` counts the Newton-Schulz iterations. The rest is as for
    `adamw`. Raises BadInput if a number is out of range.
    """
    check(lr, min_lr, warmup_steps, betas, weight_decay)
    require(0 < adamw_lr < math.inf, f"adamw_lr = {adamw_lr} must be a positive number")
    require(0 <= momentum < 1, f"momentum = {momentum} must be in [0, 1)")
    require(1 <= ns_steps < 100, f"ns_steps = {ns_steps} must be from 1 to 99")
    matrices, others = list[nn.Parameter](), list[nn.Parameter]()
    for name, p in net.named_parameters():
        inside = p.ndim == 2 and "blocks." in name and name.endswith(".weight")
        (matrices if inside else others).append(p)
    parts: list[Optimizer] = []
    if matrices:
        parts.append(Muon(matrices, lr, weight_decay, momentum, ns_steps))
    if others:
        parts.append(AdamW(others, adamw_lr, (betas[0], betas[1]), weight_decay=0.0, fused=True))
    optimizer = Together(parts)
    return optimizer, schedule(optimizer, max_steps, warmup_steps, min_lr / lr, decay)
