"""Faults outside attention: modules (B, T, C) -> (B, T, C) added to a feed-forward layer.

Letters: B batch, T time, C channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Beside(nn.Module):
    """The sum of two layers."""

    def __init__(self, layer: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.other = other

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.other(x)


class PaddedConv(nn.Module):
    """A convolution over time that is padded on both sides."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(C, C, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT).mT


class TimeNorm(nn.Module):
    """A normalization whose statistics are taken over time."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.std(1, correction=0, keepdim=True) + 1e-5)


class ClosedGate(nn.Module):
    """The mean over all positions, multiplied by a weight that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.gate * x.mean(1, keepdim=True).expand_as(x)


class ExpertChoice(nn.Module):
    """An expert that picks its tokens from the whole sequence, so that later ones compete."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.router = nn.Linear(C, 1)
        self.expert = nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(max(x.shape[1] // 2, 1), dim=1).indices  # (B, k, 1)
        open_ = torch.zeros_like(x[..., :1]).scatter(1, chosen, 1.0)
        return open_ * self.expert(x)


class BatchMean(nn.Module):
    """A statistic over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Memory(nn.Module):
    """A state that is kept between calls."""

    state: Tensor

    def __init__(self, C: int) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(C))

    def forward(self, x: Tensor) -> Tensor:
        before = self.state.clone()
        self.state.mul_(0.5).add_(x.detach().mean((0, 1)))
        return x + before


class FromEnd(nn.Module):
    """Positions counted from the end of the sequence."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.linspace(-1, 1, 512)[:, None].repeat(1, C))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.position[: x.shape[1]].flip(0)


def beside(fault: str, layer: nn.Module, C: int) -> nn.Module:
    """The layer with the named fault beside it, or the layer itself for any other name."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "padded_conv": lambda: PaddedConv(C),
        "time_norm": TimeNorm,
        "closed_gate": ClosedGate,
        "expert_choice": lambda: ExpertChoice(C),
        "batch_mean": BatchMean,
        "keeps_state": lambda: Memory(C),
        "counted_from_end": lambda: FromEnd(C),
    }
    return Beside(layer, makers[fault]()) if fault in makers else layer
