"""Interventions on heads: what a model predicts when a head is silenced or reads another text.

Letters: B batch, T time, V symbols, D channels of a head.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.layer import Attention
from attnlab.attention.torch_mha import TorchMHA
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes.capture import attention_layers, eval_mode

Head = tuple[int, int]  # layer and head, from 0


@dataclass(frozen=True)
class HeadEffect:
    """What interventions on one head change.

    Args:
        layer, head: from 0.
        restored: the share of the difference between the texts that comes back on the corrupt
            text when the head has its output on the clean one: 0 nothing, 1 all of it.
        lost: the share that goes on the clean text when the head has its output on the corrupt
            one.
        ablated: the share that goes on the clean text when the head's output is zero.
    """

    layer: int
    head: int
    restored: float
    lost: float
    ablated: float


def head_outputs(net: GPT, ids: Tensor) -> dict[Head, Tensor]:
    """What each head passes to the output projection on ids (B, T): (B, T, D) for each head.

    Raises:
        BadInput: a layer does not pass its heads through `proj`.
    """
    outputs: dict[Head, Tensor] = {}

    def keep(layer: int, heads: Tensor) -> Tensor:
        outputs.update({(layer, h): heads[..., h, :].clone() for h in range(heads.shape[-2])})
        return heads

    with eval_mode(net), _heads_through(net, keep):
        net(ids)
    return outputs


def logits_with(net: GPT, ids: Tensor, replaced: Mapping[Head, Tensor | float]) -> Tensor:
    """The logits (B, T, V) on ids (B, T) with the outputs of some heads replaced.

    Args:
        net: the model, which is not changed.
        ids: the text.
        replaced: layer and head -> output (B, T, D), or a number; 0 silences the head.

    Raises:
        BadInput: a layer does not pass its heads through `proj`.
    """

    def replace(layer: int, heads: Tensor) -> Tensor:
        changed = heads.clone()
        for (number, head), output in replaced.items():
            if number == layer:
                changed[..., head, :] = output
        return changed

    with eval_mode(net), _heads_through(net, replace):
        logits: Tensor = net(ids)
    return logits


def patch_heads(
    net: GPT, clean: Tensor, corrupt: Tensor, answers: tuple[int, int] | None = None
) -> tuple[list[HeadEffect], tuple[int, int]]:
    """Find the heads that carry what differs between two texts (Heimersheim and Nanda 2024).

    The measured quantity is the difference between the logits of two symbols after the texts. Each
    effect is a share of how much it differs between the clean and the corrupt text.

    Args:
        net: the model.
        clean: the symbols (T,) of the text after which the first answer is right.
        corrupt: those of a text of the same length, after which the second is.
        answers: the two symbols; None for the most likely one after each text.

    Returns:
        the effects, the most restoring head first, and the answers.

    Raises:
        BadInput: the lengths differ, or the texts do not differ in the quantity.
    """
    if clean.shape != corrupt.shape:
        raise BadInput(
            f"the texts have {len(clean)} and {len(corrupt)} symbols; they must be equally long"
        )
    texts = torch.stack([clean, corrupt])  # (2, T)
    first, second = logits_with(net, texts, {})[:, -1]
    right, wrong = answers or (int(first.argmax()), int(second.argmax()))

    def quantity(logits: Tensor) -> Tensor:
        return (logits[:, -1, right] - logits[:, -1, wrong]).double()

    base = quantity(logits_with(net, texts, {}))
    apart = float(base[0] - base[1])
    if right == wrong or not abs(apart) > 1e-6:
        raise BadInput("the model does not tell the texts apart; name two symbols by --answers")
    effects = []
    for (layer, head), output in head_outputs(net, texts).items():
        swapped = quantity(logits_with(net, texts, {(layer, head): output.flip(0)}))
        silent = quantity(logits_with(net, texts, {(layer, head): 0.0}))
        restored, lost = float(swapped[1] - base[1]) / apart, float(base[0] - swapped[0]) / apart
        ablated = float(base[0] - silent[0]) / apart
        effects.append(HeadEffect(layer, head, restored, lost, ablated))
    return sorted(effects, key=lambda each: -abs(each.restored)), (right, wrong)


@contextmanager
def _heads_through(net: GPT, change: Any) -> Iterator[None]:
    """Pass what arrives at each output projection through `change(layer, (B, T, H, D))`."""
    hooks = []
    try:
        for number, attn in enumerate(attention_layers(net)):
            if not isinstance(attn, Attention) or isinstance(attn, TorchMHA):
                raise BadInput(f"{type(attn).__name__} does not pass its heads through `proj`")
            H = attn.n_head

            def hook(
                module: nn.Module, args: tuple[Tensor], number: int = number, H: int = H
            ) -> tuple[Tensor]:
                return (change(number, args[0].unflatten(-1, (H, -1))).flatten(-2),)

            hooks.append(attn.proj.register_forward_pre_hook(hook))
        yield
    finally:
        for each in hooks:
            each.remove()
