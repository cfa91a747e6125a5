"""Adam. Importing PyTorch's optimizers takes seconds, too slow for a checkup."""

import torch
from torch import nn


class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1) with the gradient clipped to a norm of 1.

    Args:
        weights: to train, all with gradients enabled.
        lr: learning rate.
    """

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        self.weights = weights
        self.lr = lr
        self.n = 0
        self.first = [torch.zeros_like(w) for w in weights]
        self.second = [torch.zeros_like(w) for w in weights]

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with the current gradients, and clear them."""
        self.n += 1
        a, b = 0.9, 0.99
        norms = [w.grad.norm() for w in self.weights if w.grad is not None]
        clip = min(1.0, 1.0 / max(float(torch.stack(norms).norm()), 1e-12)) if norms else 1.0
        for weight, m, v in zip(self.weights, self.first, self.second, strict=True):
            if weight.grad is None:
                continue
            m.lerp_(weight.grad * clip, 1 - a)
            v.lerp_((weight.grad * clip).square(), 1 - b)
            size = (v / (1 - b**self.n)).sqrt_().add_(1e-8)
            weight.addcdiv_(m, size, value=-self.lr / (1 - a**self.n))
            weight.grad = None


def open_weights(model: nn.Module) -> list[nn.Parameter]:
    """All floating-point weights, with gradients enabled."""
    weights = [p for p in model.parameters() if p.is_floating_point()]
    for weight in weights:
        weight.requires_grad_()
        weight.grad = None
    return weights
