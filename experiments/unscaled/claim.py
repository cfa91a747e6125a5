"""Without 1/sqrt(D): worse at unit variance, and after 1,200 steps from GPT-2's start, too."""

import math
from collections.abc import Sequence

import torch

from attnlab.claims import Arm, AtLeast, AtMost, Bound, Claim, Measured, Pilot, Trained, Within

from .theory import at_initialization, gpt2_scores, identity

RATES = (1e-3, 3e-3, 1e-2)
LENGTHS = (300, 1200)
# Standard deviations of query and key weights of the map. With C = D = 128 unscaled scores spread
# by sqrt(D) C std^2: 0.58 is GPT-2's start, 11.3 unit variance.
GPT2, UNIT = 0.02, 0.0883883476
STDS = (GPT2, 0.0441941738, UNIT, 0.1767766953)
CONDENSATION = math.sqrt(2 * math.log(64))  # of 64 keys, Derrida 1981


def above_minus_below(*losses: float) -> float:
    """Mean cost in the cells of the map above the condensation line minus that below it."""
    cost = torch.tensor(losses, dtype=torch.float64).view(len(STDS), len(RATES), 2)
    rows = (cost[..., 0] - cost[..., 1]).mean(1)
    above = torch.tensor([spread(std) > CONDENSATION for std in STDS])
    return float(rows[above].mean() - rows[~above].mean())


def spread(std: float) -> float:
    """The standard deviation of unscaled scores at the start, for C = D = 128."""
    return std**2 * 128**1.5


def more_at_128(
    unscaled_128: float, scaled_128: float, unscaled_16: float, scaled_16: float
) -> float:
    """The cost of leaving out the scale at D = 128, minus that at D = 16."""
    return (unscaled_128 - scaled_128) - (unscaled_16 - scaled_16)


def lower_rate(*losses: float) -> float:
    """The best rate with the scale over the best one without; losses are unscaled, then scaled."""
    unscaled, scaled = losses[: len(RATES)], losses[len(RATES) :]
    return _best(scaled) / _best(unscaled)


def _best(losses: Sequence[float]) -> float:
    return RATES[losses.index(min(losses))]


def _pair(init: str, *more: str, at: str = "") -> tuple[Arm, Arm]:
    return (
        Arm(f"unscaled, {init}{at}", (f"model.init={init}", "attn=unscaled", *more)),
        Arm(f"scaled, {init}{at}", (f"model.init={init}", "attn=sdpa", *more)),
    )


def _arm(attn: str, std: float, lr: float) -> Arm:
    """A cell of the map; those of GPT-2's start and of unit variance are runs of other parts."""
    start = {GPT2: "model.init=gpt2", UNIT: "model.init=unit"}.get(std, f"model.qk_std={std}")
    rate = (f"optim.lr={lr:g}", f"optim.min_lr={lr / 10:g}")
    return Arm(f"{attn} {std:.3g} {lr:g}", (f"attn={attn}", start, *rate))


SHORT = ("trainer.max_steps=300", "trainer.val_check_interval=300")
LONG = ("trainer.max_steps=1200", "trainer.val_check_interval=1200")
ONE_HEAD = {"model.n_head": 1, "model.n_embd": 128}
EIGHT_HEADS = _pair("unit", "model.n_head=8", *SHORT, at=", D = 16")

CLAIM = Claim(
    says="Training breaks without 1/sqrt(D).",
    last_look=10,
    first_seed=300,
    headline="unit_variance",
    order=1,
    predictions=(
        Trained(
            "unit_variance",
            "Queries and keys of unit variance: at least 0.10 nats worse.",
            AtLeast(0.10),
            where="queries and keys of unit variance, one head of 128",
            pilot=Pilot(0.309, 0.01),
            arms=_pair("unit"),
            rates=RATES,
            lengths=LENGTHS,
            given=ONE_HEAD | {"model.init": "unit"},
        ),
        Trained(
            "gpt2_start_1200",
            "GPT-2's initialization: at least 0.04 nats worse after 1,200 steps.",
            AtLeast(0.04),
            where="GPT-2's initialization, the same model, 1,200 steps",
            pilot=Pilot(0.0944, 0.014),
            budget="full",
            arms=_pair("gpt2", *LONG, at=", 1200 steps"),
            rates=RATES,
            given=ONE_HEAD | {"model.init": "gpt2"},
        ),
        Trained(
            "gpt2_start_300",
            "GPT-2's initialization: within 0.1 nats after 300 steps.",
            Within(0.1),
            role="secondary",
            pilot=Pilot(0.00693, 0.036),
            arms=_pair("gpt2", *SHORT, at=", 300 steps"),
            rates=RATES,
            given=ONE_HEAD | {"model.init": "gpt2"},
        ),
        Trained(
            "width_of_heads",
            "It costs at least 0.05 nats more with one head of 128 than with eight of 16.",
            AtLeast(0.05),
            where="unit variance, and more for one head of 128 than for eight of 16, 300 steps",
            pilot=Pilot(0.117, 0.021),
            budget="full",
            arms=(*_pair("unit", *SHORT, at=", 300 steps"), *EIGHT_HEADS),
            contrast=more_at_128,
            rates=RATES,
            given={"model.n_embd": 128, "model.init": "unit"},
        ),
        Trained(
            "lower_rate",
            "GPT-2's initialization, 300 steps: the best learning rate is at least 2 times lower.",
            AtLeast(2.0, unit="times"),
            role="secondary",
            budget="full",
            arms=tuple(_arm(attn, GPT2, lr) for attn in ("unscaled", "sdpa") for lr in RATES),
            contrast=lower_rate,
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
        Measured(
            "gpt2_spread",
            "With GPT-2's initialization, unscaled scores spread by sqrt(D) C / 2500.",
            AtMost(0.05, unit="relative error, mean over C = 128, 768 and 1,600"),
            role="secondary",
            seconds=3,
            measure=gpt2_scores,
            value="error",
        ),
        Trained(
            "map",
            "The cost at each learning rate is larger above the condensation line than below.",
            AtLeast(0.05),
            role="shown",
            budget="full",
            seeds=1,
            arms=tuple(
                _arm(attn, std, lr)
                for std in STDS
                for lr in RATES
                for attn in ("unscaled", "sdpa")
            ),
            contrast=above_minus_below,
            given=ONE_HEAD,
        ),
    ),
)
