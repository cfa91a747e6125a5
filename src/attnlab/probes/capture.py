"""Looking into the attention layers of a model without leaving a trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.layer import Attention
from attnlab.attention.masks import build_mask, causal
from attnlab.model import GPT


@dataclass(frozen=True)
class View:
    """What one layer does with a batch.

    Args:
        layer: its number, from 0.
        attn: the layer itself.
        pattern: (B, H, T, T).
        mask: (T, T) bool; causal where the layer does not say.
        scores: (B, H, T, T) before mask and softmax; None where the layer does not say.
        values: (B, H, T, D); None where the layer does not say.
    """

    layer: int
    attn: nn.Module
    pattern: Tensor
    mask: Tensor
    scores: Tensor | None
    values: Tensor | None

    @property
    def outputs(self) -> Tensor | None:
        """What each head says, (B, H, T, D)."""
        return None if self.values is None else self.pattern.to(self.values.dtype) @ self.values


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside; each module's own mode afterwards."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def attention_layers(net: GPT) -> list[nn.Module]:
    """The layers that have a pattern, in the order of the blocks."""
    return [block.attn for block in net.blocks]  # type: ignore[misc]


def inputs_of(net: GPT, ids: Tensor) -> list[Tensor]:
    """What arrives at each attention layer, (B, T, C) each, by hooks that are removed again."""
    inputs: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.append(args[0].detach())

    hooks = [layer.register_forward_pre_hook(keep) for layer in attention_layers(net)]
    try:
        with eval_mode(net):
            net(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def views(net: GPT, ids: Tensor) -> Iterator[View]:
    """Every attention layer on a batch (B, T), one after the other; changes nothing."""
    for number, (attn, x) in enumerate(
        zip(attention_layers(net), inputs_of(net, ids), strict=True)
    ):
        with eval_mode(net):
            view = view_of(number, attn, x)
        yield view


def view_of(number: int, attn: nn.Module, x: Tensor) -> View:
    """One attention layer on what arrives at it, (B, T, C)."""
    pattern = attn.pattern(x).float()  # type: ignore[operator]
    if not isinstance(attn, Attention):
        return View(number, attn, pattern, build_mask(causal, x.shape[1], x.device), None, None)
    _, _, values = attn.split(x)
    return View(number, attn, pattern, attn.mask(x), attn.scores(x).float(), values.float())
