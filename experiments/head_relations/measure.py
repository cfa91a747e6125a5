"""Where the head of a trained model looks, in a task of two look-ups."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnlab.probes.capture import views
from experiments.head_relations.two_places import FAR, NEAR, two_places

SEQUENCES = 64


def weights(folder: Path) -> Mapping[str, Any]:
    """The mean weight on each of the two positions that an answer needs, of the first head of the
    first layer, and the smaller of the two."""
    from attnlab.trained.checkpoints import load_model

    net, _ = load_model(folder)
    T = net.block_size
    x, _ = two_places(T).windows("val", T, SEQUENCES)
    pattern = next(iter(views(net, x))).pattern[:, 0]  # (B, T, T), of the first head
    asked = torch.arange(FAR, T)
    near = float(pattern[:, asked, asked - NEAR].mean())
    far = float(pattern[:, asked, asked - FAR].mean())
    return {"near": near, "far": far, "smaller": min(near, far)}
