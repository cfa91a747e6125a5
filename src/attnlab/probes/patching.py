"""Interventions on heads: replace the output of a head by zero or by its output on another text.

Letters: B batch, T time, V symbols, H heads, D channels of a head.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn, stack

from attnlab.attention.layer import Attention
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes.capture import attention_layers, eval_mode

Head = tuple[int, int]  # layer and head, from 0


def head_outputs(net: GPT, ids: Tensor) -> dict[Head, Tensor]:
    """What each head passes to the output projection on ids (B, T): (B, T, D) for each head."""
    outputs: dict[Head, Tensor] = {}

    def keep(layer: int, heads: Tensor) -> Tensor:
        outputs.update({(layer, h): x.clone() for h, x in enumerate(heads.unbind(-2))})
        return heads

    _run(net, ids, keep)
    return outputs


def logits_with(net: GPT, ids: Tensor, replaced: Mapping[Head, Tensor | float]) -> Tensor:
    """The logits (B, T, V) on ids (B, T) with the outputs of some heads replaced.

    `replaced` maps layer and head to an output (B, T, D) or a number; 0 silences the head.
    """

    def replace(layer: int, heads: Tensor) -> Tensor:
        heads = heads.clone()
        for (number, head), output in replaced.items():
            if number == layer:
                heads[..., head, :] = output
        return heads

    return _run(net, ids, replace)


def patch_heads(
    net: GPT, clean: Tensor, corrupt: Tensor, answers: tuple[int, int] | None = None
) -> tuple[list[dict[str, float]], tuple[int, int]]:
    """Patch each head between two texts, and measure the effect (Heimersheim and Nanda 2024).

    The measured quantity is the difference between the logits of two symbols after a text. Each
    effect is a share of the change of this quantity from `corrupt` to `clean`: "restored" returns
    on the corrupt text with the head's output on the clean one, "lost" disappears on the clean
    text with the head's output on the corrupt one, and "ablated" with an output of zero.

    `answers` are the right symbols after `clean` (T,) and `corrupt` (T,); None takes the most
    likely ones. Returns a row for each head, with its layer and number, by the size of "restored",
    and the answers. Raises BadInput if the lengths differ, the texts do not differ in the
    quantity, or a layer does not pass its heads through `proj`.
    """
    if clean.shape != corrupt.shape:
        raise BadInput(
            f"the texts have {len(clean)} and {len(corrupt)} symbols; they must be equally long"
        )
    texts = stack([clean, corrupt])  # (2, T)
    base = logits_with(net, texts, {})[:, -1].double()  # (2, V)
    right, wrong = answers or base.argmax(-1).tolist()
    first, second = (base[:, right] - base[:, wrong]).tolist()
    apart = first - second
    if right == wrong or not abs(apart) > 1e-6:
        raise BadInput(
            "the model does not distinguish the texts by these symbols; give others with --answers"
        )
    rows: list[dict[str, float]] = []
    for (layer, head), output in head_outputs(net, texts).items():
        row: dict[str, float] = {"layer": layer, "head": head}
        interventions: dict[str, Tensor | float] = {"lost": output.flip(0), "ablated": 0.0}
        for name, given in interventions.items():
            logits = logits_with(net, texts, {(layer, head): given})[:, -1].double()
            on_clean, on_corrupt = (logits[:, right] - logits[:, wrong]).tolist()
            row[name] = (first - on_clean) / apart
            if name == "lost":
                row["restored"] = (on_corrupt - second) / apart
        rows.append(row)
    return sorted(rows, key=lambda row: -abs(row["restored"])), (right, wrong)


def _run(net: GPT, ids: Tensor, change: Callable[[int, Tensor], Tensor]) -> Tensor:
    """The logits when `change(layer, (B, T, H, D))` acts on what arrives at each `proj`."""
    layers = attention_layers(net)
    silent = set(range(len(layers)))  # the layers that have not called their `proj`

    def hook(number: int, n_head: int, module: nn.Module, args: tuple[Any, ...]) -> Tensor:
        silent.discard(number)
        return change(number, args[0].unflatten(-1, (n_head, -1))).flatten(-2)

    with ExitStack() as hooks, eval_mode(net):
        for number, attn in enumerate(layers):
            if isinstance(attn, Attention):
                bound = partial(hook, number, attn.n_head)
                hooks.enter_context(attn.proj.register_forward_pre_hook(bound))
        logits: Tensor = net(ids)
    if silent:
        name = type(layers[min(silent)]).__name__
        raise BadInput(f"{name} does not pass its heads through `proj`")
    return logits
