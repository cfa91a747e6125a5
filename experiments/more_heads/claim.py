"""The same total width in different numbers of heads."""

from attnlab.claims import Arm, AtMost, Claim, Pilot, Trained

LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")
FOUR, ONE = Arm("4 heads", ("attn=sdpa",)), Arm("1 head", ("attn=single_head",))
EIGHT = Arm("8 heads", ("attn=sdpa", "model.n_head=8"))
TWO = Arm("2 heads", ("attn=sdpa", "model.n_head=2"))


def _late(arm: Arm) -> Arm:
    return Arm(f"{arm.name}, late", (*arm.overrides, *LATE))


def _wide(heads: int) -> Arm:
    """The scaled arms of the claim `unscaled`, so that both claims share the runs."""
    shape = ("model.n_layer=1", "model.n_embd=512", f"model.n_head={heads}", "model.init=unit")
    rate = ("optim.lr=1e-3", "optim.min_lr=1e-4")
    steps = ("trainer.max_steps=200", "trainer.val_check_interval=200")
    return Arm(f"{heads} of width {512 // heads}", ("attn=sdpa", *shape, *rate, *steps))


CLAIM = Claim(
    says="Several heads beat one of the same total width.",
    last_look=40,
    first_seed=200,
    headline="wide",
    order=8,
    predictions=(
        Trained(
            "early",
            "Four heads are better than one after 300 steps.",
            AtMost(0.0),
            where="300 steps, width 64, four heads",
            pilot=Pilot(-0.015, 0.0105),
            arms=(FOUR, ONE),
        ),
        Trained(
            "wide",
            "At width 512, 32 heads are at least 0.05 nats better than one.",
            AtMost(-0.05),
            where="200 steps, width 512, 32 heads",
            pilot=Pilot(-0.19, 0.05),
            budget="full",
            arms=(_wide(32), _wide(1)),
        ),
        Trained(
            "late",
            "Four heads are better than one after 2,000 steps.",
            AtMost(0.0),
            role="secondary",
            budget="full",
            arms=(_late(FOUR), _late(ONE)),
        ),
        Trained(
            "between",
            "Eight heads are better than two after 300 steps.",
            AtMost(0.0),
            role="shown",
            seeds=10,
            pilot=Pilot(0.0045, 0.018),
            arms=(EIGHT, TWO),
        ),
    ),
)
