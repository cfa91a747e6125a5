"""Missing scale, flipped mask and identical heads: on another text, and in a larger model."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from attnlab.claims import (
    Arm,
    AtLeast,
    AtMost,
    Claim,
    Exactly,
    Pilot,
    Prediction,
    RunMetric,
    Trained,
    level,
)

# Settings, in words, and their overrides. Of tiny, the width, the depth and the batch.
TINY = ("data=tinyshakespeare", "model.n_layer=4", "model.n_head=4", "model.n_embd=128",
        "data.batch_size=12", "optim.warmup_steps=10",
        "trainer.max_steps=50", "trainer.val_check_interval=50")  # fmt: skip
# Of baby, the width, the depth and the learning rate.
BABY = ("data=tinyshakespeare", "model.n_layer=6", "model.n_head=6", "model.n_embd=384",
        "data.batch_size=12", "optim.warmup_steps=10", "optim.lr=1e-3", "optim.min_lr=1e-4",
        "trainer.max_steps=50", "trainer.val_check_interval=50")  # fmt: skip
SETTINGS = {
    "plays": ("the plays, 300 steps", ()),
    "tiny": ("the preset tiny on TinyShakespeare, 50 steps", TINY),
    "baby": ("the width and depth of baby on TinyShakespeare, 50 steps", BABY),
}
SECONDARY = {"baby": {"role": "secondary", "seeds": 5, "seconds": 50}}  # too dear for ten seeds
# Of the missing scale, in nats, at least.
COSTS = {"plays": 0.01, "tiny": 0.01, "baby": 0.01}
# How much lower the loss with the flipped mask is, at least.
LEAKS = {"plays": 1.0, "tiny": 0.5, "baby": 1.0}
# Distances of heads, in times the rms of a weight, at least.
APART = {"plays": 0.2, "tiny": 0.1, "baby": 0.05}
PILOTS = {
    "unscaled_plays": Pilot(0.0599, 0.024),
    "unscaled_tiny": Pilot(0.0581, 0.02),
    "flipped_plays": Pilot(-2.06, 0.021),
    "flipped_tiny": Pilot(-1.23, 0.17),
    "free_plays": Pilot(0.366, 0.0097),
    "free_tiny": Pilot(0.164, 0.0047),
}


def distance(folder: Path) -> Mapping[str, Any]:
    """How far query, key and value weights of two heads are apart.

    "by rms" is the root mean square of the differences to the first head, divided by that of the
    weights; heads that are drawn independently have sqrt(2).
    """
    from attnlab.training.checkpoints import load_model

    net, _ = load_model(folder)
    weights = torch.stack(
        [
            block.attn.qkv.weight.detach().unflatten(0, (3, block.attn.n_head, -1))
            for block in net.blocks
        ]
    )  # (layer, 3, H, D, C)
    apart = weights[:, :, 1:] - weights[:, :, :1]
    return {
        "largest difference": float(apart.abs().max()),
        "by rms": float(apart.square().mean().sqrt() / weights.square().mean().sqrt()),
    }


def _arm(setting: str, attn: str) -> Arm:
    on_cpu = ("trainer.accelerator=cpu",) if attn == "identical_heads" else ()
    return Arm(f"{attn}, {setting}", (f"attn={attn}", *SETTINGS[setting][1], *on_cpu))


def _predictions(setting: str) -> Iterator[Prediction]:
    where, _ = SETTINGS[setting]
    common: dict[str, Any] = {"budget": "full", **SECONDARY.get(setting, {})}
    first = where[0].upper() + where[1:]

    yield Trained(
        f"unscaled_{setting}",
        f"{first}: without the scale, at least {COSTS[setting]} nats worse, at one learning rate.",
        AtLeast(COSTS[setting]),
        where=f"scale: {where}",
        arms=(_arm(setting, "unscaled"), _arm(setting, "sdpa")),
        pilot=PILOTS.get(f"unscaled_{setting}"),
        **common,
    )
    yield Trained(
        f"flipped_{setting}",
        f"{first}: the flipped mask's loss is {LEAKS[setting]} nats lower, at one learning rate.",
        AtMost(-LEAKS[setting]),
        where=f"flipped mask: {where}",
        arms=(_arm(setting, "flipped"), _arm(setting, "sdpa")),
        pilot=PILOTS.get(f"flipped_{setting}"),
        **common,
    )
    yield Trained(
        f"tied_{setting}",
        f"{first}: heads with tied outputs stay equal to the last bit on a CPU.",
        Exactly(0.0, unit="between the weights of any two heads"),
        where=f"identical heads, output slices equal: {where}",
        arms=(_arm(setting, "identical_heads"),),
        contrast=level,
        metric=RunMetric(distance, "largest difference", diverged=math.inf),
        **common,
    )
    yield Trained(
        f"free_{setting}",
        f"{first}: with free outputs they come apart, by at least {APART[setting]} of a weight.",
        AtLeast(APART[setting], unit="times the rms of a weight"),
        where=f"identical heads, output slices free: {where}",
        arms=(_arm(setting, "identical_qkv"),),
        contrast=level,
        metric=RunMetric(distance, "by rms"),
        pilot=PILOTS.get(f"free_{setting}"),
        **common,
    )


CLAIM = Claim(
    says="What holds of the scale, the mask and the heads holds in other settings.",
    last_look=40,
    first_seed=400,
    headline="unscaled_plays",
    order=27,
    predictions=tuple(each for setting in SETTINGS for each in _predictions(setting)),
)
