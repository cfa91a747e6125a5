"""One projection for queries and keys, or for all three, instead of three."""

from attnlab.claims import Arm, AtLeast, Claim, Pilot, Trained

RATES = (3e-3, 1e-2, 3e-2)
LATE = ("trainer.max_steps=2400", "trainer.val_check_interval=2400")
# A wider MLP makes up for the projections that are left out: all arms have equal parameters.
SEPARATE = Arm("separate", ("attn=sdpa",))
SHARED_QK = Arm("shared_qk", ("attn=shared_qk", "model.mlp_ratio=4.5"))
SHARED_QKV = Arm("shared_qkv", ("attn=shared_qkv", "model.mlp_ratio=5"))


def _late(arm: Arm) -> Arm:
    return Arm(f"{arm.name}, late", (*arm.overrides, *LATE))


CLAIM = Claim(
    says="Queries, keys and values need projections of their own.",
    first_seed=300,
    headline="queries_and_keys",
    order=14,
    predictions=(
        Trained(
            "queries_and_keys",
            "One projection for queries and keys: at least 0.02 nats worse after 600 steps.",
            AtLeast(0.02),
            where="one projection for queries and keys, equal parameters",
            pilot=Pilot(0.124, 0.046),
            arms=(SHARED_QK, SEPARATE),
            rates=RATES,
        ),
        Trained(
            "all_three",
            "One projection for all three: at least 0.1 nats worse after 600 steps.",
            AtLeast(0.1),
            where="one projection for queries, keys and values, equal parameters",
            pilot=Pilot(0.354, 0.0089),
            arms=(SHARED_QKV, SEPARATE),
            rates=RATES,
        ),
        Trained(
            "values_too",
            "Sharing the values as well is worse than sharing queries and keys alone.",
            AtLeast(0.0),
            role="secondary",
            pilot=Pilot(0.229, 0.039),
            arms=(SHARED_QKV, SHARED_QK),
            rates=RATES,
        ),
        Trained(
            "all_three_late",
            "One projection for all three: worse after 2,400 steps at one learning rate, 3e-3.",
            AtLeast(0.0),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(_late(SHARED_QKV), _late(SEPARATE)),
        ),
    ),
)
