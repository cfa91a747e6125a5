"""A proof of the leak of a fill of 0, and the weight on the future with a fill of -1e4."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attnlab.attention import SelfAttention, finite_fill, zero_fill
from attnlab.attention.core import Kernel
from attnlab.data.corpus import tinyshakespeare
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.rng import generator
from experiments.betting import train_and_bet, uniform_text


def zero_fill_bet(seed: int) -> Mapping[str, Any]:
    """Bet on fresh uniform tokens with zero_fill."""
    net = _net(zero_fill, seed)
    text = uniform_text(65, 64, seed)
    bet = train_and_bet(net, text, weights=list(net.parameters()), steps=200, lr=3e-3)
    return {"log M": bet.highest}


def at_initialization(seed: int) -> Mapping[str, Any]:
    """Largest weight on the future over layers, heads, and queries, before training."""
    ids = torch.randint(65, (4, 64), generator=generator(seed, "tokens"))
    return {
        "finite_fill": _future_mass(_net(finite_fill, seed), ids),
        "zero_fill": _future_mass(_net(zero_fill, seed), ids),
    }


def after_training(folder: Path) -> Mapping[str, Any]:
    """Whether any query of a trained model puts a thousandth of its weight on the future."""
    from attnlab.trained.checkpoints import load_model

    net, _ = load_model(folder)
    ids = tinyshakespeare().val[: 16 * net.block_size]
    mass = _future_mass(net, ids.view(16, -1))
    return {"future mass": mass, "intact": float(mass <= 1e-3)}


def _net(kernel: Kernel, seed: int) -> GPT:
    attn = partial(SelfAttention, kernel=kernel)
    net = GPT(attn, 65, block_size=64, n_layer=2, n_head=4, n_embd=64, bias=False)
    init_weights(net, seed, "unit")
    return net


@torch.inference_mode()
def _future_mass(net: GPT, ids: torch.Tensor) -> float:
    largest = 0.0
    x = net.embed(ids)
    for block in net.blocks:
        pattern = block.attn.pattern(block.ln_1(x))
        largest = max(largest, float(pattern.triu(1).sum(-1).max()))
        x = block(x)
    return largest
