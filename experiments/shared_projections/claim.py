"""One projection for queries and keys, or for all three, instead of three."""

from attnlab.claims import Arm, AtLeast, Claim, Pilot, Trained

SEPARATE = Arm("separate", ("attn=sdpa",))
SHARED_QK = Arm("shared_qk", ("attn=shared_qk",))
SHARED_QKV = Arm("shared_qkv", ("attn=shared_qkv",))


CLAIM = Claim(
    says="Queries, keys and values need projections of their own.",
    first_seed=200,
    headline="queries_and_keys",
    order=14,
    predictions=(
        Trained(
            "queries_and_keys",
            "One projection for queries and keys: at least 0.02 nats worse after 600 steps.",
            AtLeast(0.02),
            where="one projection for queries and keys",
            pilot=Pilot(0.068, 0.019),
            arms=(SHARED_QK, SEPARATE),
        ),
        Trained(
            "all_three",
            "One projection for all three: at least 0.1 nats worse after 600 steps.",
            AtLeast(0.1),
            where="one projection for queries, keys and values",
            pilot=Pilot(0.23, 0.018),
            arms=(SHARED_QKV, SEPARATE),
        ),
        Trained(
            "values_too",
            "Sharing the values as well is worse than sharing queries and keys alone.",
            AtLeast(0.0),
            role="secondary",
            pilot=Pilot(0.16, 0.02),
            arms=(SHARED_QKV, SHARED_QK),
        ),
    ),
)
