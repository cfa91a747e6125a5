"""Heads that start equal: they stay equal only if nothing distinguishes them."""

import math
from collections.abc import Mapping
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
    RunMetric,
    Trained,
    Within,
    level,
)


def distance(folder: Path) -> Mapping[str, Any]:
    """How far query, key and value weights of two heads are apart, and their patterns.

    "by rms" is the root mean square of the differences to the first head, divided by that of the
    weights; heads that are drawn independently have sqrt(2). "patterns" is the largest distance of
    the patterns of two heads at the end, at most 1, and "by step" holds it for each logged step.
    """
    from attnlab.runs.event_files import read_scalars
    from attnlab.training.checkpoints import load_model

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


LATE = ("trainer.max_steps=1200", "trainer.val_check_interval=1200")
ON_CPU = "trainer.accelerator=cpu"  # where sums have one order, so equal heads stay equal
# How far heads are apart while they train.
OFTEN = ("probes.patterns.every=10", "probes.patterns.heads=true")
INDEPENDENT = Arm("independent", ("attn=sdpa",))
TIED = Arm("tied output", ("attn=identical_heads", ON_CPU, *OFTEN))
FREE = Arm("free output", ("attn=identical_qkv", *OFTEN))
DROPOUT = Arm("tied, dropout", ("attn=identical_heads", "model.dropout=0.1", *OFTEN))
NARROW = Arm("one narrow head", ("attn=sdpa", "attn.head_init=single_active"))
WIDE = Arm("one wide head", ("attn=single_head",))
PRICED = (TIED, INDEPENDENT, FREE, NARROW, WIDE)
TIED_LATE = Arm("tied output, late", (*TIED.overrides, *LATE))
FREE_LATE = Arm("free output, late", (*FREE.overrides, *LATE))
INDEPENDENT_LATE = Arm("independent, late", (*INDEPENDENT.overrides, *LATE))
EQUAL = RunMetric(distance, "largest difference", diverged=math.inf)
APART = RunMetric(distance, "by rms")
PATTERNS = RunMetric(distance, "patterns")
RMS = "times the rms of a weight"

CLAIM = Claim(
    says="Identical heads collapse.",
    last_look=10,
    first_seed=300,
    headline="free_output",
    order=3,
    predictions=(
        Trained(
            "collapse",
            "Tied outputs, no dropout: the heads stay equal to the last bit on a CPU.",
            Exactly(0.0, unit="between the weights of any two heads"),
            where="output slices equal and no dropout",
            arms=(TIED,),
            contrast=level,
            metric=EQUAL,
            given={"model.dropout": 0.0},
        ),
        Trained(
            "free_output",
            "Free outputs: the root mean square of the distance is at least 0.2 of the weights'.",
            AtLeast(0.2, unit=RMS),
            bearing="against",
            where="output slices free",
            pilot=Pilot(0.34, 0.03),
            arms=(FREE,),
            contrast=level,
            metric=APART,
        ),
        Trained(
            "dropout",
            "Tied outputs with dropout on the pattern: it is at least 0.1 of the weights'.",
            AtLeast(0.1, unit=RMS),
            bearing="against",
            where="dropout on the pattern",
            pilot=Pilot(0.271, 0.031),
            arms=(DROPOUT,),
            contrast=level,
            metric=APART,
        ),
        Trained(
            "free_output_patterns",
            "Free outputs: the patterns of two heads differ by at least 0.5 of a row's weight.",
            AtLeast(0.5, unit="of a row's weight"),
            role="secondary",
            pilot=Pilot(0.97, 0.014),
            arms=(FREE,),
            contrast=level,
            metric=PATTERNS,
        ),
        Trained(
            "dropout_patterns",
            "Tied outputs with dropout: they differ by at least 0.3 of a row's weight.",
            AtLeast(0.3, unit="of a row's weight"),
            role="secondary",
            pilot=Pilot(0.934, 0.055),
            arms=(DROPOUT,),
            contrast=level,
            metric=PATTERNS,
        ),
        Trained(
            "one_narrow_head",
            "Collapsed heads reach the loss of one head of width D, within 0.06 nats, at one "
            "learning rate.",
            Within(0.06),
            role="secondary",
            pilot=Pilot(0.00404, 0.012),
            arms=(TIED, NARROW),
        ),
        Trained(
            "price",
            "After 300 steps at one learning rate, the collapse costs at most 0.06 nats.",
            AtMost(0.06),
            role="secondary",
            pilot=Pilot(0.0155, 0.015),
            arms=PRICED,
        ),
        Trained(
            "free_output_price",
            "Equal queries, keys and values with free outputs cost at most 0.05 nats, at one "
            "learning rate.",
            AtMost(0.05),
            role="secondary",
            pilot=Pilot(-0.0255, 0.024),
            arms=(FREE, INDEPENDENT),
        ),
        Trained(
            "collapse_late",
            "After 1,200 steps: tied outputs are still equal to the last bit.",
            Exactly(0.0, unit="between the weights of any two heads"),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(TIED_LATE,),
            contrast=level,
            metric=EQUAL,
        ),
        Trained(
            "free_output_late",
            "After 1,200 steps: free outputs differ by at least 0.2 of the weights.",
            AtLeast(0.2, unit=RMS),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(FREE_LATE,),
            contrast=level,
            metric=APART,
        ),
        Trained(
            "price_late",
            "After 1,200 steps at one learning rate, the collapse costs at most 0.06 nats.",
            AtMost(0.06),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(TIED_LATE, INDEPENDENT_LATE),
        ),
    ),
)
