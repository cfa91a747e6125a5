"""Accuracy on the induction task, and the attention of the heads of a trained model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnlab.attention import build_mask, causal
from attnlab.data.sequences import induction
from attnlab.files import read_json
from attnlab.model import GPT
from attnlab.probes.measures import induction_mass, previous_mass


def after_training(folder: Path) -> Mapping[str, Any]:
    """Accuracy of a run, and the largest scores of the heads in each layer, on the validation.

    The scores are the prefix-matching score (weight on what followed earlier occurrences)
    and the previous-position score of Olsson et al. (2022).
    """
    from attnlab.trained.checkpoints import load_model

    net, _ = load_model(folder)
    x, _ = induction(net.block_size).windows("val", net.block_size, 128)
    scores = head_scores(net, x)
    last = scores["induction"][-1]
    return {"accuracy": read_json(folder / "metrics.json")["val_accuracy"], "best": last} | scores


@torch.no_grad()
def head_scores(net: GPT, ids: Tensor) -> dict[str, Any]:
    """The best head of each layer: its induction score and its previous-position score."""
    mask = build_mask(causal, ids.shape[1])
    x = net.embed(ids)
    found: dict[str, Any] = {"induction": [], "previous": []}
    for block in net.blocks:
        pattern = block.attn.pattern(block.ln_1(x))
        found["induction"].append(float(induction_mass(pattern, ids).max()))
        found["previous"].append(float(previous_mass(pattern, mask).max()))
        x = block(x)
    return found
