"""Without 1/sqrt(D): true under the assumption it is derived from, false at GPT-2's start."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Effort, Measured, Trained
from attnlab.claims.evidence import Evidence
from attnlab.plotting.drawing import COLORS, panels

from .theory import KEYS, SIZES, at_initialization, identity

TABLE = (8, 64, 512)
# Standard deviations of query and key weights, and learning rates, of the map. With C = D = 128
# unscaled scores spread by sqrt(D) C std^2: 0.58 is GPT-2's start, 11.3 unit variance.
COARSE = ((0.02, 0.0883883476, 0.1767766953), (1e-3, 1e-2))
FINE = ((0.02, 0.03, 0.0441941738, 0.0625, 0.0883883476, 0.1767766953), (3e-4, 1e-3, 3e-3, 1e-2))
CONDENSATION = math.sqrt(2 * math.log(64))  # of 64 keys, Derrida 1981


def coarse_contrast(*losses: float) -> float:
    """Mean penalty of the cells above the condensation line minus that of the cells below."""
    return _above_minus_below(losses, *COARSE)


def fine_contrast(*losses: float) -> float:
    """The same on the fine grid."""
    return _above_minus_below(losses, *FINE)


def _above_minus_below(
    losses: Sequence[float], stds: Sequence[float], rates: Sequence[float]
) -> float:
    penalty = torch.tensor(losses, dtype=torch.float64).view(len(stds), len(rates), 2)
    rows = (penalty[..., 0] - penalty[..., 1]).mean(1)
    above = torch.tensor([_spread(std) > CONDENSATION for std in stds])
    return float(rows[above].mean() - rows[~above].mean())


def _spread(std: float) -> float:
    return std**2 * 128**1.5


def _pair(init: str) -> tuple[Arm, Arm]:
    return (
        Arm("unscaled", (f"model.init={init}", "attn=unscaled")),
        Arm("scaled", (f"model.init={init}", "attn=sdpa")),
    )


def _map_arms(stds: Sequence[float], rates: Sequence[float]) -> tuple[Arm, ...]:
    return tuple(
        Arm(f"{attn} {std:.3g} {lr:g}", (f"attn={attn}", *_at(std), *_rate(lr)))
        for std in stds
        for lr in rates
        for attn in ("unscaled", "sdpa")
    )


def _at(std: float) -> tuple[str, ...]:
    if std == COARSE[0][0]:
        return ("model.init=gpt2",)  # shared with the other parts
    return ("model.init=unit",) if std == COARSE[0][1] else (f"model.qk_std={std}",)


def _rate(lr: float) -> tuple[str, ...]:
    return () if lr == 1e-3 else (f"optim.lr={lr:g}", f"optim.min_lr={lr / 10:g}")


def figure(evidence: Evidence) -> Figure:
    start = evidence.shown("a_entropy")
    fine, coarse = evidence.shown("e_map_fine"), evidence.shown("e_map")
    drawing, axes = panels(3, width=4.7, height=4.4)
    if start is not None:
        for name, color, marker in (("scaled", COLORS[0], "o"), ("unscaled", COLORS[1], "s")):
            rows = torch.tensor([row[name] for row in start.each("entropy")])
            theory = start.each("theory")[0][name]
            axes[0].plot(SIZES, theory, color=color, label=f"{name}, theory")
            axes[0].plot(SIZES, rows.mean(0), marker, color=color, label=f"{name}, measured")
        axes[0].axhline(math.log(KEYS), color="0.5", linestyle=":")
        axes[0].set(xlabel="D", ylabel="entropy (nats)", title="At the start")
        axes[0].set_xscale("log", base=2)
        axes[0].legend(fontsize=12, loc="center right")
    for x, name in enumerate(("b_unit", "c_gpt2")):
        found = evidence.shown(name)
        if found is not None:
            axes[1].plot([x] * len(found.values), found.values, "so"[x], color=COLORS[1 - x])
    axes[1].axhline(0, color="0.3", linewidth=1)
    axes[1].set_xticks([0, 1], ["unit\nvariance", "GPT-2's\nstart"])
    axes[1].set(xlim=(-0.6, 1.6), ylabel="unscaled minus scaled (nats)", title="300 steps")
    if fine is not None:
        _draw_map(axes[2], fine.scores, FINE, drawing)
    elif coarse is not None:
        _draw_map(axes[2], coarse.scores, COARSE, drawing)
    return drawing


def _draw_map(
    axis: Any, losses: Mapping[str, list[float]], at: tuple[Any, Any], drawing: Figure
) -> None:
    stds, rates = at
    values = torch.tensor([sum(v) / len(v) for v in losses.values()])
    values = values.view(len(stds), len(rates), 2)
    grid = values[..., 0] - values[..., 1]
    bound = max(0.05, float(grid.abs().max()))
    image = axis.pcolormesh(grid, cmap="PuOr_r", vmin=-bound, vmax=bound, edgecolors="white")
    axis.set_yticks([i + 0.5 for i in range(len(stds))], [f"{_spread(s):.2g}" for s in stds])
    axis.set_xticks([i + 0.5 for i in range(len(rates))], [f"{lr:g}" for lr in rates])
    for i in range(len(stds)):
        for j in range(len(rates)):
            value = float(grid[i, j])
            color = "white" if abs(value) > 0.6 * bound else "black"
            place = {"ha": "center", "va": "center"}
            axis.annotate(f"{value:+.2f}", (j + 0.5, i + 0.5), color=color, **place)
    above = sum(_spread(std) < CONDENSATION for std in stds)  # the line lies between two rows
    axis.axhline(above, color="black", linestyle="--", linewidth=3)
    axis.set(xlabel="learning rate", ylabel="spread of unscaled scores", title="The map")
    axis.grid(False)
    drawing.colorbar(image, ax=axis, label="unscaled minus scaled (nats)")


def weights_table(evidence: Evidence) -> list[Mapping[str, Any]]:
    """The largest weight of a row, averaged: what the softmax saturates to."""
    start = evidence.shown("a_entropy")
    if start is None:
        return []
    mean = {
        name: torch.tensor([row[name] for row in start.each("largest")]).mean(0)
        for name in ("scaled", "unscaled")
    }
    return [
        {"D": D} | {f"largest weight, {name}": float(mean[name][SIZES.index(D)]) for name in mean}
        for D in TABLE
    ]


LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")
ONE_HEAD = {"model.n_head": 1, "model.n_embd": 128}

CLAIM = Claim(
    says="Training breaks without 1/sqrt(D).",
    order=1,
    figure=figure,
    table=weights_table,
    notes="""
The factor is derived for queries and keys of unit variance, whose dot products have a standard
deviation of sqrt(D). GPT-2's initialization (0.02) makes them far smaller: at D = 128 and C = 128
the unscaled scores spread by 0.58 only, well below the value sqrt(2 ln n) at which a softmax over
n independent scores condenses onto a few keys. So the sentence has preconditions, and the lab
tests it both where they hold and where they do not.

The map shows single seeds of a coarse grid at the quick budget: look at its shape, not its cells.
Its dashed line separates scores below the condensation line for n = 64 keys from those above.
""",
    parts=(
        Trained(
            "b_unit",
            "Unit-variance queries and keys: at least 0.10 nats worse after 300 steps.",
            AtLeast(0.10, expected=0.18),
            {"quick": Effort(6), "full": Effort(10)},
            where="queries and keys of unit variance, one head of 128, 300 steps",
            bearing="for",
            arms=_pair("unit"),
            given=ONE_HEAD | {"model.init": "unit"},
        ),
        Trained(
            "b_unit_late",
            "Unit-variance queries and keys: at least 0.30 nats worse after 2,000 steps.",
            AtLeast(0.30, expected=0.45),
            {"full": Effort(10, LATE)},
            where="queries and keys of unit variance, one head of 128, 2,000 steps",
            bearing="for",
            arms=_pair("unit"),
            given=ONE_HEAD | {"model.init": "unit"},
        ),
        Trained(
            "c_gpt2",
            "GPT-2's initialization: at least 0.05 nats better after 300 steps.",
            AtMost(-0.05, expected=-0.128),
            {"quick": Effort(6), "full": Effort(10)},
            where="GPT-2's initialization, the same model, 300 steps",
            bearing="against",
            arms=_pair("gpt2"),
            given=ONE_HEAD | {"model.init": "gpt2"},
        ),
        Trained(
            "c_gpt2_late",
            "GPT-2's initialization: at most 0.02 nats worse after 2,000 steps.",
            AtMost(0.02, expected=0.0),
            {"full": Effort(10, LATE)},
            where="GPT-2's initialization, the same model, 2,000 steps",
            bearing="against",
            arms=_pair("gpt2"),
            given=ONE_HEAD | {"model.init": "gpt2"},
        ),
        Measured(
            "a_spread",
            "At the start scores spread by sqrt(D) without the factor and by 1 with it.",
            AtMost(0.05, unit="relative error, mean over D = 1 to 1024"),
            {"quick": Effort(6), "full": Effort(10)},
            measure=at_initialization,
            value="spread error",
        ),
        Measured(
            "a_entropy",
            "The entropy of the pattern is that of the random energy model.",
            AtMost(0.1, unit="nats off, mean over D = 1 to 1024"),
            {"quick": Effort(6), "full": Effort(10)},
            measure=at_initialization,
            value="entropy error",
        ),
        Measured(
            "a_gradient",
            "So is the trace of the softmax's Jacobian: what gradient gets through.",
            AtMost(0.05, unit="off, mean over D = 1 to 1024"),
            {"quick": Effort(6), "full": Effort(10)},
            measure=at_initialization,
            value="trace error",
        ),
        Measured(
            "d_identity",
            "No factor is D^(1/4) times larger weights and learning rates of Q and K.",
            AtMost(1e-10, unit="nats between two trajectories in fp64"),
            {"quick": Effort(6), "full": Effort(10)},
            measure=identity,
            value="difference",
        ),
        Trained(
            "e_map",
            "The penalty is larger above the condensation line than below, by at least 0.05 nats.",
            AtLeast(0.05),
            {"quick": Effort(1), "full": Effort(6)},
            counts=False,
            arms=_map_arms(*COARSE),
            contrast=coarse_contrast,
            given=ONE_HEAD,
        ),
        Trained(
            "e_map_fine",
            "The same on a finer grid.",
            AtLeast(0.05),
            {"full": Effort(3)},
            counts=False,
            arms=_map_arms(*FINE),
            contrast=fine_contrast,
            given=ONE_HEAD,
        ),
    ),
)
