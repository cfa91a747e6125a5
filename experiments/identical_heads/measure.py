"""How far apart heads are that started equal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def distance(folder: Path) -> Mapping[str, Any]:
    """How far query, key and value weights of two heads are apart, and their patterns.

    "by rms" is the root mean square of the differences to the first head, divided by that of the
    weights; heads that are drawn independently have sqrt(2). "patterns" is the largest distance of
    the patterns of two heads at the end, at most 1, and "by step" holds it for each logged step.
    """
    from attnlab.runs.frame import read_scalars
    from attnlab.trained.checkpoints import load_model

    net, _ = load_model(folder)
    weights = torch.stack(
        [
            block.attn.qkv.weight.detach().unflatten(0, (3, block.attn.n_head, -1))
            for block in net.blocks
        ]
    )  # (layer, 3, H, D, C)
    apart = weights[:, :, 1:] - weights[:, :, :1]
    by_step = sorted(read_scalars(folder).get("attn/head_difference", {}).items())
    return {
        "largest difference": float(apart.abs().max()),
        "by rms": float(apart.square().mean().sqrt() / weights.square().mean().sqrt()),
        "patterns": by_step[-1][1],
        "by step": by_step,
    }
