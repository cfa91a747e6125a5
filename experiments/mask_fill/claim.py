"""Blocked scores set to a finite number: 0 leaks at once, -1e4 when scores grow past it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnlab.attention import SelfAttention, Variant, faulty_kernels
from attnlab.attention.kernels import Kernel
from attnlab.checkup.martingale import train_and_bet, uniform_text
from attnlab.claims import (
    Arm,
    AtLeast,
    AtMost,
    Claim,
    Exactly,
    Happens,
    Measured,
    Pilot,
    Proof,
    RunMetric,
    Trained,
    level,
)
from attnlab.data.corpora import tinyshakespeare
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.rng import generator

LEAK_FREE = 1.40  # nats; no causal model of this size has been seen below


def zero_fill_bet(seed: int) -> Mapping[str, Any]:
    """Bet on fresh uniform tokens with zero_fill."""
    net = _net(faulty_kernels.zero_fill, seed)
    text = uniform_text(65, 64, seed)
    bet = train_and_bet(net, text, weights=list(net.parameters()), steps=200, lr=3e-3)
    return {"log M": bet.highest}


def at_initialization(seed: int) -> Mapping[str, Any]:
    """Largest weight on the future over layers, heads, and queries, before training."""
    ids = torch.randint(65, (4, 64), generator=generator(seed, "tokens"))
    return {
        "finite_fill": _future_mass(_net(faulty_kernels.finite_fill, seed), ids),
        "zero_fill": _future_mass(_net(faulty_kernels.zero_fill, seed), ids),
    }


def after_training(folder: Path) -> Mapping[str, Any]:
    """Whether any query of a trained model puts a thousandth of its weight on the future."""
    from attnlab.training.checkpoints import load_model

    net, _ = load_model(folder)
    ids = tinyshakespeare().val[: 16 * net.block_size]
    mass = _future_mass(net, ids.long().view(16, -1))
    return {"future mass": mass, "intact": float(mass <= 1e-3)}


def _net(kernel: Kernel, seed: int) -> GPT:
    attn = Variant(SelfAttention, {"kernel": kernel})
    net = GPT(attn, 65, block_size=64, n_layer=2, n_head=4, n_embd=64, bias=False)
    init_weights(net, seed, "unit")
    return net


@torch.inference_mode()
def _future_mass(net: GPT, ids: torch.Tensor) -> float:
    largest, x = 0.0, net.embed(ids)
    for block in net.blocks:
        pattern = block.attn.pattern(block.ln_1(x))
        largest = max(largest, float(pattern.triu(1).sum(-1).max()))
        x = block(x)
    return largest


def lowest(*losses: float) -> float:
    """The lowest loss of several learning rates."""
    return min(losses)


def _rate(lr: float, *more: str) -> tuple[str, ...]:
    return ("attn=finite_fill", f"optim.lr={lr:g}", f"optim.min_lr={lr / 10:g}", *more)


UNSCALED = Arm("finite_fill unscaled, rate 0.03", _rate(0.03, "attn.scale=1.0"))
LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")
HIGH_AND_LATE = (
    Arm("finite_fill unscaled, rate 0.03, late", _rate(0.03, "attn.scale=1.0", *LATE)),
    Arm("finite_fill scaled, rate 0.3, late", _rate(0.3, *LATE)),
    Arm("finite_fill unscaled, rate 0.01, late", _rate(0.01, "attn.scale=1.0", *LATE)),
)

CLAIM = Claim(
    says="Filling with 0, or with a finite number, is not masking.",
    last_look=20,
    first_seed=300,
    headline="zero_fill_loss",
    order=6,
    predictions=(
        Measured(
            "zero_fill",
            "Fresh uniform tokens: a leak of zero_fill is proven, p < 1e-6.",
            Proof(1e-6),
            where="fill with 0, on uniform tokens",
            pilot=Pilot(1.0),
            seconds=1,
            measure=zero_fill_bet,
            value="log M",
        ),
        Trained(
            "zero_fill_loss",
            "TinyShakespeare: the loss with zero_fill is at least 0.1 nats below the causal loss.",
            AtMost(-0.1),
            where="fill with 0, TinyShakespeare, 300 steps at one learning rate",
            pilot=Pilot(-0.292, 0.042),
            arms=(Arm("zero_fill", ("attn=zero_fill",)), Arm("causal", ("attn=sdpa",))),
        ),
        Measured(
            "finite_at_start",
            "At the start, a fill of -1e4 puts exactly no weight on the future.",
            Exactly(0.0, unit="of the weight on the future"),
            bearing="against",
            where="fill with -1e4, at the start",
            seconds=1,
            measure=at_initialization,
            value="finite_fill",
        ),
        Trained(
            "finite_holds",
            "Unscaled and at a learning rate of 0.03, the fill of -1e4 still masks.",
            Happens("no query puts a thousandth of its weight on the future"),
            role="secondary",
            pilot=Pilot(1.0),
            arms=(UNSCALED,),
            contrast=level,
            metric=RunMetric(after_training, "intact"),
        ),
        Trained(
            "finite_is_unused",
            "At that rate, the model does not learn to read ahead: its loss is above 1.40.",
            AtLeast(LEAK_FREE),
            role="secondary",
            pilot=Pilot(2.66, 0.081),
            arms=(UNSCALED,),
            contrast=level,
            given={"corpus": "tinyshakespeare"},
        ),
        Trained(
            "finite_is_unused_late",
            "It does not after 2,000 steps either, at any of three high rates.",
            AtLeast(LEAK_FREE),
            role="secondary",
            budget="full",
            seeds=3,
            arms=HIGH_AND_LATE,
            contrast=lowest,
            given={"corpus": "tinyshakespeare"},
        ),
    ),
)
