"""Heads that start equal: they stay equal only if nothing tells them apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attnlab.claims import (
    Arm,
    AtLeast,
    AtMost,
    Claim,
    Effort,
    Exactly,
    Reading,
    Trained,
    Within,
    level,
)
from attnlab.claims.evidence import Evidence
from attnlab.plotting.drawing import dots, panels


def distance(folder: Path) -> Mapping[str, Any]:
    """The largest difference between two heads' query, key and value weights, and their size."""
    from attnlab.training.checkpoints import load_model

    net, _ = load_model(folder)
    largest, squares, count = 0.0, 0.0, 0
    for block in net.blocks:
        weights = block.attn.qkv.weight.detach().unflatten(0, (3, block.attn.n_head, -1))
        largest = max(largest, float((weights - weights[:, :1]).abs().max()))
        squares += float(weights.square().sum())
        count += weights.numel()
    rms = (squares / count) ** 0.5
    return {"largest difference": largest, "relative": largest / rms}


def figure(evidence: Evidence) -> Figure:
    apart, price = evidence.shown("free_output"), evidence.shown("price")
    exact = evidence.shown("collapse")
    drawing, axes = panels(2, width=6.4, height=4.6)
    if apart is not None and exact is not None:
        groups = [("tied output", exact.each("relative", "tied output"))]
        dropped = evidence.shown("dropout")
        groups.append(("free output", apart.each("relative", "free output")))
        if dropped is not None:
            groups.append(("tied, dropout", dropped.each("relative", "tied, dropout")))
        dots(axes[0], groups)
        axes[0].set(ylabel="difference of heads / size", title="Do the heads stay equal?")
    if price is not None:
        groups = list(price.scores.items())
        baseline = price.scores["independent"]
        dots(
            axes[1],
            [(n, [a - b for a, b in zip(v, baseline, strict=True)]) for n, v in groups],
        )
        axes[1].set(ylabel="loss minus independent (nats)", title="What it costs")
        axes[1].tick_params(axis="x", labelsize=11)
    return drawing


INDEPENDENT = Arm("independent", ("attn=sdpa",))
TIED = Arm("tied output", ("attn=identical_heads",))
FREE = Arm("free output", ("attn=identical_qkv",))
DROPOUT = Arm("tied, dropout", ("attn=identical_heads", "model.dropout=0.1"))
NARROW = Arm("one narrow head", ("attn=sdpa", "attn.head_init=single_active"))
WIDE = Arm("one wide head", ("attn=single_head",))
EFFORTS = {"quick": Effort(6), "full": Effort(10)}
LATE = {"full": Effort(10, ("trainer.max_steps=2000", "trainer.val_check_interval=2000"))}
EQUAL = Reading(distance, "largest difference", diverged=float("inf"))
APART = Reading(distance, "relative", diverged=0.0)

CLAIM = Claim(
    says="Identical heads collapse.",
    order=3,
    figure=figure,
    notes="""
Heads with equal weights get equal gradients, so any elementwise optimizer keeps them equal, but
only if their output slices are equal too and nothing random acts on each head alone. Then H heads
are one head of width D, whose output moves H times as fast. A single difference breaks the
symmetry in the first step.
""",
    parts=(
        Trained(
            "collapse",
            "Tied outputs, no dropout: the heads stay equal to the last bit, on a CPU.",
            Exactly(0.0, unit="between the weights of any two heads"),
            {"quick": Effort(6), "full": Effort(10, on_gpu=("trainer.accelerator=cpu",))},
            where="output slices equal, no dropout",
            bearing="for",
            arms=(TIED,),
            contrast=level,
            metric=EQUAL,
            given={"model.dropout": 0.0},
        ),
        Trained(
            "free_output",
            "Free outputs: the heads come apart by more than the size of a weight.",
            AtLeast(1.0, expected=4.0, unit="of the weights' size"),
            EFFORTS,
            where="output slices free",
            bearing="against",
            arms=(FREE,),
            contrast=level,
            metric=APART,
        ),
        Trained(
            "dropout",
            "Tied outputs with dropout on the pattern: they come apart as well.",
            AtLeast(1.0, expected=2.0, unit="of the weights' size"),
            EFFORTS,
            where="dropout on the pattern",
            bearing="against",
            arms=(DROPOUT,),
            contrast=level,
            metric=APART,
        ),
        Trained(
            "one_narrow_head",
            "Collapsed heads reach the loss of one head of width D, within 0.02 nats.",
            Within(0.02, expected=0.0),
            EFFORTS,
            arms=(TIED, NARROW),
        ),
        Trained(
            "price",
            "After 300 steps the collapse costs 0.02 nats at most: its price grows with training.",
            AtMost(0.02, expected=-0.01),
            EFFORTS,
            arms=(TIED, INDEPENDENT, FREE, NARROW, WIDE),
        ),
        Trained(
            "price_late",
            "After 2,000 steps the collapse costs at least 0.01 nats.",
            AtLeast(0.01, expected=0.03),
            LATE,
            arms=(TIED, INDEPENDENT, FREE),
        ),
        Trained(
            "free_output_price",
            "Equal queries, keys and values with free outputs cost nothing: within 0.02 nats.",
            Within(0.02, expected=0.0),
            EFFORTS,
            arms=(FREE, INDEPENDENT),
        ),
    ),
)
