"""Without 1/sqrt(D): worse for the queries and keys it is derived for, not for GPT-2's."""

import math
from collections.abc import Sequence

import torch

from attnlab.claims import Arm, AtLeast, AtMost, Bound, Claim, Measured, Pilot, Trained

from .theory import at_initialization, identity

# Standard deviations of query and key weights, and learning rates, of the map. With C = D = 128
# unscaled scores spread by sqrt(D) C std^2: 0.58 is GPT-2's start, 11.3 unit variance.
COARSE = ((0.02, 0.0883883476, 0.1767766953), (1e-3, 1e-2))
FINE = ((0.02, 0.03, 0.0441941738, 0.0625, 0.0883883476, 0.1767766953), (3e-4, 1e-3, 3e-3, 1e-2))
CONDENSATION = math.sqrt(2 * math.log(64))  # of 64 keys, Derrida 1981


def coarse_contrast(*losses: float) -> float:
    """Mean penalty of the cells above the condensation line minus that of the cells below it."""
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


def more_at_128(
    unscaled_128: float, scaled_128: float, unscaled_16: float, scaled_16: float
) -> float:
    """The cost of leaving out the scale at D = 128, minus that at D = 16."""
    return (unscaled_128 - scaled_128) - (unscaled_16 - scaled_16)


def largest_price(*losses: float) -> float:
    """The largest cost of several pairs of arms."""
    return max(a - b for a, b in zip(losses[::2], losses[1::2], strict=True))


def _pair(init: str, *more: str, late: str = "") -> tuple[Arm, Arm]:
    return (
        Arm(f"unscaled, {init}{late}", (f"model.init={init}", "attn=unscaled", *more)),
        Arm(f"scaled, {init}{late}", (f"model.init={init}", "attn=sdpa", *more)),
    )


def _wide_pair(D: int, lr: float = 1e-3) -> tuple[Arm, Arm]:
    """One layer of width 512 in heads of width D: only the width of a head differs."""
    shape = ("model.n_layer=1", "model.n_embd=512", f"model.n_head={512 // D}", "model.init=unit")
    steps = ("trainer.max_steps=200", "trainer.val_check_interval=200")
    at = f"D = {D}" if lr == 1e-3 else f"D = {D}, lr {lr:g}"
    return (
        Arm(f"unscaled, {at}", ("attn=unscaled", *shape, *steps, *_rate(lr))),
        Arm(f"scaled, {at}", ("attn=sdpa", *shape, *steps, *_rate(lr))),
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


LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")
ONE_HEAD = {"model.n_head": 1, "model.n_embd": 128}
WIDE = {"model.n_layer": 1, "model.n_embd": 512, "trainer.max_steps": 200}

CLAIM = Claim(
    says="Training breaks without 1/sqrt(D).",
    last_look=20,
    first_seed=200,
    headline="wide",
    order=1,
    predictions=(
        Trained(
            "unit_variance",
            "Queries and keys of unit variance: at least 0.10 nats worse after 300 steps.",
            AtLeast(0.10),
            where="queries and keys of unit variance, one head of 128, 300 steps",
            pilot=Pilot(0.209, 0.0215),
            arms=_pair("unit"),
            given=ONE_HEAD | {"model.init": "unit"},
        ),
        Trained(
            "gpt2_start",
            "GPT-2's initialization: not worse after 300 steps.",
            AtMost(0.0),
            bearing="against",
            where="GPT-2's initialization, the same model",
            pilot=Pilot(-0.137, 0.0129),
            arms=_pair("gpt2"),
            given=ONE_HEAD | {"model.init": "gpt2"},
        ),
        Trained(
            "wide",
            "At equal total width and D = 128, leaving out the scale costs at least 0.25 nats.",
            AtLeast(0.25),
            where="unit variance, one layer of width 512, D = 128",
            pilot=Pilot(0.345, 0.02),
            budget="full",
            arms=_wide_pair(128),
            given=WIDE,
        ),
        Trained(
            "wide_and_narrow",
            "At equal total width, it costs at least 0.08 nats more at D = 128 than at D = 16.",
            AtLeast(0.08),
            where="unit variance, a cost that grows from D = 16 to D = 128",
            pilot=Pilot(0.175, 0.03),
            budget="full",
            arms=(*_wide_pair(128), *_wide_pair(16)),
            contrast=more_at_128,
            given=WIDE,
        ),
        Trained(
            "unit_variance_late",
            "Queries and keys of unit variance: at least 0.20 nats worse after 2,000 steps.",
            AtLeast(0.20),
            role="secondary",
            budget="full",
            arms=_pair("unit", *LATE, late=", late"),
            given=ONE_HEAD | {"model.init": "unit"},
        ),
        Trained(
            "gpt2_start_late",
            "GPT-2's initialization: at most 0.02 nats worse after 2,000 steps.",
            AtMost(0.02),
            role="secondary",
            budget="full",
            arms=_pair("gpt2", *LATE, late=", late"),
            given=ONE_HEAD | {"model.init": "gpt2"},
        ),
        Measured(
            "spread",
            "At the start, the scores' standard deviation is sqrt(D), and 1 with the scale.",
            AtMost(0.05, unit="relative error, mean over D = 1 to 1024"),
            role="secondary",
            pilot=Pilot(0.0051, 0.0018),
            seconds=3,
            measure=at_initialization,
            value="spread error",
        ),
        Measured(
            "entropy",
            "The entropy of the pattern equals that of the random energy model.",
            AtMost(0.1, unit="nats off, mean over D = 1 to 1024"),
            role="secondary",
            pilot=Pilot(0.0116, 0.0046),
            seconds=3,
            measure=at_initialization,
            value="entropy error",
        ),
        Measured(
            "jacobian",
            "The trace of the softmax's Jacobian equals that of the random energy model.",
            AtMost(0.05, unit="off, mean over D = 1 to 1024"),
            role="secondary",
            pilot=Pilot(0.0023, 0.0009),
            seconds=3,
            measure=at_initialization,
            value="trace error",
        ),
        Measured(
            "identity",
            "No scale equals D^(1/4) times larger weights and learning rates of Q and K.",
            Bound(1e-10, unit="nats between two trajectories in fp64"),
            role="secondary",
            seconds=1,
            measure=identity,
            value="difference",
        ),
        Trained(
            "all_widths",
            "The cost at equal total width, for the other widths of a head.",
            AtLeast(0.0),
            role="shown",
            budget="full",
            seeds=3,
            arms=tuple(arm for D in (32, 64, 256, 512) for arm in _wide_pair(D)),
            contrast=largest_price,
            given=WIDE,
        ),
        Trained(
            "rates",
            "The price at equal width, at a third and at three times the learning rate.",
            AtLeast(0.0),
            role="shown",
            budget="full",
            seeds=1,
            arms=tuple(arm for D in (16, 128) for lr in (3e-4, 3e-3) for arm in _wide_pair(D, lr)),
            contrast=largest_price,
            given=WIDE,
        ),
        Trained(
            "map",
            "The penalty is larger above the condensation line than below.",
            AtLeast(0.05),
            role="shown",
            seeds=1,
            arms=_map_arms(*COARSE),
            contrast=coarse_contrast,
            given=ONE_HEAD,
        ),
        Trained(
            "map_fine",
            "The same on a finer grid.",
            AtLeast(0.05),
            role="shown",
            budget="full",
            seeds=2,
            arms=_map_arms(*FINE),
            contrast=fine_contrast,
            given=ONE_HEAD,
        ),
    ),
)
