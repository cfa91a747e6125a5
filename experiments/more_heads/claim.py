"""The same total width in different numbers of heads."""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, Trained

RATES = (3e-3, 1e-2, 3e-2)
FOUR, ONE = Arm("4 heads", ("attn=sdpa",)), Arm("1 head", ("attn=single_head",))
EIGHT = Arm("8 heads", ("attn=sdpa", "model.n_head=8"))
TWO = Arm("2 heads", ("attn=sdpa", "model.n_head=2"))


def _after(steps: int, arm: Arm) -> Arm:
    length = (f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}")
    return Arm(f"{arm.name}, {steps} steps", (*arm.overrides, *length))


def _wide(heads: int) -> Arm:
    shape = ("model.n_embd=128", f"model.n_head={heads}")
    return Arm(f"{heads} of width {128 // heads}", ("attn=sdpa", *shape))


CLAIM = Claim(
    says="Several heads beat one of the same total width.",
    last_look=20,
    first_seed=300,
    headline="four_1200",
    order=8,
    predictions=(
        Trained(
            "four_1200",
            "Four heads of 16 are better than one of 64 after 1,200 steps.",
            AtMost(0.0),
            where="width 64, four heads, 1,200 steps",
            pilot=Pilot(-0.0505, 0.015),
            arms=tuple(_after(1200, arm) for arm in (FOUR, ONE)),
            rates=RATES,
        ),
        Trained(
            "four_300",
            "Four heads of 16 are better than one of 64 after 300 steps.",
            AtMost(0.0),
            role="secondary",
            pilot=Pilot(-0.0151, 0.051),
            arms=tuple(_after(300, arm) for arm in (FOUR, ONE)),
            rates=RATES,
        ),
        Trained(
            "wide",
            "At width 128, eight heads of 16 are worse than one after 300 steps.",
            AtLeast(0.0),
            bearing="against",
            where="width 128, eight heads, 300 steps",
            pilot=Pilot(0.046, 0.015),
            budget="full",
            arms=(_wide(8), _wide(1)),
            rates=RATES,
        ),
        Trained(
            "between",
            "Eight heads and two, after 300 steps at one learning rate.",
            AtMost(0.0),
            role="shown",
            seeds=10,
            arms=(EIGHT, TWO),
        ),
    ),
)
