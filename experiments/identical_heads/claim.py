"""Heads that start equal: they stay equal only if nothing distinguishes them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """The largest difference between two heads' query, key and value weights, and their size.

    "by step" holds pairs of a step and the largest difference between the patterns of two heads.
    """
    from attnlab.runs.event_files import read_scalars
    from attnlab.training.checkpoints import load_model

    net, _ = load_model(folder)
    largest, squares, count = 0.0, 0.0, 0
    for block in net.blocks:
        weights = block.attn.qkv.weight.detach().unflatten(0, (3, block.attn.n_head, -1))
        largest = max(largest, float((weights - weights[:, :1]).abs().max()))
        squares += float(weights.square().sum())
        count += weights.numel()
    rms = (squares / count) ** 0.5
    by_step = sorted(read_scalars(folder).get("attn/head_difference", {}).items())
    return {"largest difference": largest, "relative": largest / rms, "by step": by_step}


LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")
ON_CPU = "trainer.accelerator=cpu"  # where sums have one order, so equal heads stay equal
OFTEN = "probes.patterns.every=10"  # steps; how far heads are apart while they train
INDEPENDENT = Arm("independent", ("attn=sdpa",))
TIED = Arm("tied output", ("attn=identical_heads", ON_CPU, OFTEN))
FREE = Arm("free output", ("attn=identical_qkv", OFTEN))
DROPOUT = Arm("tied, dropout", ("attn=identical_heads", "model.dropout=0.1", OFTEN))
NARROW = Arm("one narrow head", ("attn=sdpa", "attn.head_init=single_active"))
WIDE = Arm("one wide head", ("attn=single_head",))
PRICED = (TIED, INDEPENDENT, FREE, NARROW, WIDE)
TIED_LATE = Arm("tied output, late", (*TIED.overrides, *LATE))
INDEPENDENT_LATE = Arm("independent, late", (*INDEPENDENT.overrides, *LATE))
EQUAL = RunMetric(distance, "largest difference", diverged=math.inf)
APART = RunMetric(distance, "relative")

CLAIM = Claim(
    says="Identical heads collapse.",
    last_look=10,
    first_seed=200,
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
            "Free outputs: the heads diverge by more than half the size of a weight.",
            AtLeast(0.5, unit="of the weights' size"),
            bearing="against",
            where="output slices free",
            pilot=Pilot(2.18, 0.54),
            arms=(FREE,),
            contrast=level,
            metric=APART,
        ),
        Trained(
            "dropout",
            "Tied outputs with dropout on the pattern: the heads diverge as well.",
            AtLeast(0.5, unit="of the weights' size"),
            bearing="against",
            where="dropout on the pattern",
            pilot=Pilot(1.67, 0.15),
            arms=(DROPOUT,),
            contrast=level,
            metric=APART,
        ),
        Trained(
            "one_narrow_head",
            "Collapsed heads reach the loss of one head of width D, within 0.06 nats.",
            Within(0.06),
            role="secondary",
            pilot=Pilot(0.004, 0.016),
            arms=(TIED, NARROW),
        ),
        Trained(
            "price",
            "After 300 steps, the collapse costs at most 0.04 nats.",
            AtMost(0.04),
            role="secondary",
            pilot=Pilot(0.009, 0.0033),
            arms=PRICED,
        ),
        Trained(
            "price_late",
            "After 2,000 steps, the collapse costs at most 0.06 nats.",
            AtMost(0.06),
            role="secondary",
            budget="full",
            arms=(TIED_LATE, INDEPENDENT_LATE),
        ),
        Trained(
            "free_output_price",
            "Equal queries, keys, and values with free outputs cost nothing.",
            AtMost(0.0),
            role="secondary",
            pilot=Pilot(-0.043, 0.008),
            arms=(FREE, INDEPENDENT),
        ),
    ),
)
