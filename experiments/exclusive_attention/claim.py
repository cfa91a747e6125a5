"""Attention without the part of the mixed values along a token's own value."""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, Trained

RATES = (3e-3, 1e-2, 3e-2)
LENGTHS = (300, 1200)


def _pair(T: int) -> tuple[Arm, Arm]:
    """Both arms at a context of T tokens, with 768 tokens a batch."""
    context = () if T == 64 else (f"model.block_size={T}", f"data.batch_size={768 // T}")
    return (
        Arm("exclusive" if T == 64 else f"exclusive, T = {T}", ("attn=exclusive", *context)),
        Arm("softmax" if T == 64 else f"softmax, T = {T}", ("attn=sdpa", *context)),
    )


def more_at_256(long: float, long_softmax: float, short: float, short_softmax: float) -> float:
    """The difference of the losses at T = 256, minus that at T = 64."""
    return (long - long_softmax) - (short - short_softmax)


CLAIM = Claim(
    says="Attention without a token's own value lowers the loss, and more at longer T.",
    last_look=40,
    first_seed=300,
    headline="long",
    order=23,
    predictions=(
        Trained(
            "short",
            "T = 64: the loss is lower by less than 0.04 nats.",
            AtLeast(-0.04),
            bearing="against",
            where="T = 64, a loss that is 0.04 nats lower",
            pilot=Pilot(-0.0037, 0.016),
            arms=_pair(64),
            rates=RATES,
            lengths=LENGTHS,
        ),
        Trained(
            "long",
            "T = 256: the loss is lower.",
            AtMost(0.0),
            where="T = 256",
            pilot=Pilot(-0.0262, 0.010),
            arms=_pair(256),
            rates=RATES,
            lengths=LENGTHS,
        ),
        Trained(
            "longer",
            "The loss falls more at T = 256 than at T = 64.",
            AtMost(0.0),
            where="more at T = 256 than at T = 64",
            pilot=Pilot(-0.029, 0.011),
            arms=(*_pair(256), *_pair(64)),
            contrast=more_at_256,
            rates=RATES,
            lengths=LENGTHS,
        ),
    ),
)
