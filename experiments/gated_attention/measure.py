"""The weight that heads of trained models give to the first position."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.data.corpus import tinyshakespeare
from attnlab.model import GPT
from attnlab.probes.capture import views
from attnlab.probes.measures import first_mass
from experiments.gated_attention.backcopy import backcopy

SYMBOLS = 32  # of the task, besides the start and the triggers


def on_text(folder: Path) -> Mapping[str, Any]:
    """The weight on the first position of windows of TinyShakespeare, over that of even weights.

    A mean over heads and layers, and the largest one of a head.
    """
    from attnlab.trained.checkpoints import load_model

    net, _ = load_model(folder)
    T = net.block_size
    shares: list[float] = []
    for view in views(net, tinyshakespeare().val[: 32 * T].view(32, T)):
        even = view.mask / view.mask.sum(-1, keepdim=True)
        ratio = first_mass(view.pattern, view.mask) / first_mass(even[None, None], view.mask)
        shares += ratio.tolist()
    return {"mean": sum(shares) / len(shares), "largest": max(shares)}


def on_backcopy(folder: Path) -> Mapping[str, Any]:
    """The weight on the start symbol of `backcopy`, see `weight_on_start`."""
    from attnlab.trained.checkpoints import load_model

    return weight_on_start(load_model(folder)[0])


def weight_on_start(net: GPT) -> dict[str, Any]:
    """The mean weight of all heads on the start, for symbols whose answer depends on them alone.

    "triggers" is that of triggers, which need the symbol before them.
    """
    x, _ = backcopy(net.block_size, SYMBOLS).windows("val", net.block_size, 64)
    late = x > 0  # (B, T)
    late[:, :8] = False  # with few keys, even weights are large
    plain = late & (x <= SYMBOLS)
    triggers = late & (x > SYMBOLS)
    weights = [view.pattern[..., 0].mean(1) for view in views(net, x)]  # (B, T) each
    mean = sum(weights) / len(weights)
    return {"plain": float(mean[plain].mean()), "triggers": float(mean[triggers].mean())}
