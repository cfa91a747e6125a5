"""Saturation of the softmax while a scaled model trains."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import SelfAttention, Variant
from attnlab.data.corpora import tinyshakespeare
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.rng import generator

T, B, WARMUP = 64, 12, 20
STEPS, WIDTH = 100, 256
LOOKS = (0, 10, 20, 30, 40, 60, 80, 100)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def train(
    *,
    width: int,
    head_size: int,
    scale: float | None,
    lr: float,
    seed: int,
    steps: int = STEPS,
) -> dict[str, list[float]]:
    """Train one layer on TinyShakespeare, and measure its softmax during training.

    Args:
        width: C.
        head_size: D; there are C / D heads.
        scale: multiplies the scores; None means 1/sqrt(D).
        lr: of AdamW, after a linear warmup of 20 steps.
        seed: of weights and batches.
        steps: of training.

    Returns:
        one value for each step in `LOOKS` and the last one: the share of rows whose largest weight
        is above 0.99, the standard deviation of a row's scores, and the validation loss on a
        fixed batch.
    """
    train_ids, val_ids = _texts()
    net = GPT(
        Variant(SelfAttention, {"scale": scale}),
        65,
        block_size=T,
        n_layer=1,
        n_head=width // head_size,
        n_embd=width,
    )
    init_weights(net, seed, "unit")
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.1)
    held_out = val_ids[: 16 * (T + 1)].view(16, T + 1)
    stream = generator(seed, "healthy")
    found: dict[str, list[float]] = {"saturated": [], "spread": [], "loss": []}
    for step in range(steps + 1):
        if step in LOOKS or step == steps:
            for name, value in _look(net, held_out).items():
                found[name].append(value)
        ids = _batch(train_ids, stream)
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / WARMUP)
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return found


@torch.no_grad()
def _look(net: GPT, ids: Tensor) -> dict[str, float]:
    block = net.blocks[0]
    x = block.ln_1(net.embed(ids[:, :-1]))
    mask = block.attn.mask(x)
    loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return {
        "saturated": float(measures.saturated_rows(block.attn.pattern(x), mask).mean()),
        "spread": float(measures.score_std(block.attn.scores(x), mask).mean()),
        "loss": float(loss),
    }


@cache
def _texts() -> tuple[Tensor, Tensor]:
    corpus = tinyshakespeare()
    return corpus.train.long(), corpus.val.long()


def _batch(text: Tensor, stream: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - T, (B,), generator=stream)
    return torch.stack([text[i : i + T + 1] for i in starts.tolist()])


SETTINGS: dict[str, dict[str, Any]] = {
    "one head": {"head_size": 256, "scale": None},
    "16 heads": {"head_size": 16, "scale": None},
    "one head, unscaled": {"head_size": 256, "scale": 1.0},
}


def saturation(seed: int) -> Mapping[str, Any]:
    """Share of saturated rows after 100 steps in each setting, at each rate and at the best one.

    The best rate is the one with the lowest validation loss of this seed.
    """
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        curves = {lr: train(width=WIDTH, seed=seed, lr=lr, **setting) for lr in RATES}
        best = min(curves, key=lambda lr: curves[lr]["loss"][-1])
        found |= {f"{name}, rate {lr:g}": curves[lr]["saturated"][-1] for lr in RATES}
        found[f"{name}, losses"] = [curves[lr]["loss"][-1] for lr in RATES]
        found |= {name: curves[best]["saturated"][-1], f"{name}, best rate": best}
        found[f"{name}: curves"] = curves[best]
    found["one head, three times its best rate"] = _above(found, "one head")
    return found


def _above(found: Mapping[str, Any], name: str) -> float:
    """The share of saturated rows at the next rate above the best one."""
    place = min(RATES.index(found[f"{name}, best rate"]) + 1, len(RATES) - 1)
    return float(found[f"{name}, rate {RATES[place]:g}"])


def late(seed: int) -> Mapping[str, Any]:
    """Share of saturated rows after 400 steps, one head, at a learning rate of 1e-3."""
    curves = train(width=WIDTH, head_size=256, scale=None, lr=1e-3, seed=seed, steps=400)
    return {"one head": curves["saturated"][-1], "loss": curves["loss"][-1]}
