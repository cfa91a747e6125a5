"""Blocked scores filled with a number: 0 leaks at once, -1e4 once scores have grown past it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from attnlab.attention import SelfAttention, Variant, faulty_kernels
from attnlab.attention.kernels import Kernel
from attnlab.checkup.martingale import train_and_bet, uniform_text
from attnlab.claims import (
    Arm,
    AtMost,
    Claim,
    Effort,
    Exactly,
    Measured,
    Proved,
    Reading,
    ShareAtLeast,
    Trained,
    level,
)
from attnlab.claims.evidence import Evidence
from attnlab.data.corpora import tinyshakespeare
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.plotting.drawing import dots, panels
from attnlab.rng import generator


def zero_fill_bet(seed: int, budget: str) -> Mapping[str, Any]:
    """Bet on fresh uniform tokens with zero_fill."""
    net = _net(faulty_kernels.zero_fill, seed)
    text = uniform_text(65, 64, seed)
    bet = train_and_bet(net, text, weights=list(net.parameters()), steps=200, lr=3e-3)
    return {"log M": bet.highest, "history": bet.history}


def at_initialization(seed: int, budget: str) -> Mapping[str, Any]:
    """Weight on the future, the largest over layers, heads and queries, before training."""
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
    return {"future mass": mass, "broken": float(mass > 1e-3)}


def _net(kernel: Kernel, seed: int) -> GPT:
    attn = Variant(SelfAttention, {"kernel": kernel})
    net = GPT(attn, 65, block_size=64, n_layer=2, n_head=4, n_embd=64, bias=False)
    init_weights(net, seed, "gpt2")
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
    """The best of several learning rates."""
    return min(losses)


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=10)
    zero, finite = evidence.shown("zero_fill_loss"), evidence.shown("finite_learns")
    groups = []
    for found in (zero, finite):
        if found is not None:
            groups += list(found.scores.items())
    dots(axes[0], groups)
    axes[0].axhline(1.40, color="black", linestyle="--")
    axes[0].set(ylabel="validation loss (nats)", ylim=(0, None), title="TinyShakespeare")
    axes[0].tick_params(axis="x", labelsize=12)
    return drawing


def _rate(lr: float, *more: str) -> tuple[str, ...]:
    return ("attn=finite_fill", f"optim.lr={lr:g}", f"optim.min_lr={lr / 10:g}", *more)


HIGH = (
    Arm("finite, unscaled, lr 0.03", _rate(0.03, "attn.scale=1.0")),
    Arm("finite, scaled, lr 0.3", _rate(0.3)),
    Arm("finite, unscaled, lr 0.01", _rate(0.01, "attn.scale=1.0")),
)
LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")
EFFORTS = {"quick": Effort(6), "full": Effort(10)}
BETS = {"quick": Effort(6, seconds=3), "full": Effort(10, seconds=3)}

CLAIM = Claim(
    says="Filling with 0, or with a finite number, is not masking.",
    order=6,
    figure=figure,
    notes="""
A blocked key whose score becomes 0 keeps the weight e^0, so that everybody reads a little of the
future from the start. A fill of -1e4 underflows to exactly nothing, and every test at the start
passes; but it is a mask only while all visible scores of a row stay above -1e4. High learning
rates drive scores there. Whether the training then makes use of what it may see is another
question, asked apart: below 1.40 nats (dashed) no honest model has been seen.
""",
    parts=(
        Measured(
            "zero_fill",
            "Fresh uniform tokens: zero_fill is proven to read the future, p < 1e-9.",
            Proved(1e-9),
            BETS,
            where="fill with 0, a proof",
            bearing="for",
            measure=zero_fill_bet,
            value="log M",
        ),
        Trained(
            "zero_fill_loss",
            "TinyShakespeare: zero_fill is at least 0.1 nats below the causal loss.",
            AtMost(-0.1),
            EFFORTS,
            where="fill with 0, TinyShakespeare",
            bearing="for",
            arms=(Arm("zero_fill", ("attn=zero_fill",)), Arm("causal", ("attn=sdpa",))),
        ),
        Measured(
            "finite_at_start",
            "At the start a fill of -1e4 puts exactly nothing on the future.",
            Exactly(0.0, unit="of the weight on the future"),
            BETS,
            where="fill with -1e4, at the start",
            bearing="against",
            measure=at_initialization,
            value="finite_fill",
        ),
        Trained(
            "finite_breaks",
            "Unscaled and at a learning rate of 0.03 the mask of -1e4 breaks.",
            ShareAtLeast(0.5),
            EFFORTS,
            where="fill with -1e4, after training at a high rate",
            bearing="for",
            arms=(HIGH[0],),
            contrast=level,
            metric=Reading(after_training, "broken", diverged=1.0),
        ),
        Trained(
            "finite_learns",
            "Training at that rate learns to use it: a loss below 1.40.",
            AtMost(1.40),
            EFFORTS,
            where="fill with -1e4, as a leak that training uses",
            bearing="for",
            arms=(HIGH[0],),
            contrast=level,
            given={"corpus": "tinyshakespeare"},
        ),
        Trained(
            "finite_learns_late",
            "After 2,000 steps at one of three high rates: a loss below 1.40.",
            AtMost(1.40),
            {"full": Effort(10, LATE)},
            where="fill with -1e4, as a leak that training uses within 2,000 steps",
            bearing="for",
            arms=HIGH,
            contrast=lowest,
            given={"corpus": "tinyshakespeare"},
        ),
    ),
)
