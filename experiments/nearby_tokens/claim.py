"""Do nearby tokens matter more? Keys of trained models are taken away by distance."""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level

from .measure import on_plays, on_shakespeare

SHAKESPEARE = Arm("TinyShakespeare", ("data=tinyshakespeare",))
PLAYS = Arm("plays", ("data=plays", "trainer.max_steps=500", "trainer.val_check_interval=500"))


CLAIM = Claim(
    says="Nearby tokens matter more.",
    first_seed=200,
    headline="shakespeare",
    order=15,
    predictions=(
        Trained(
            "shakespeare",
            "TinyShakespeare: near keys are worth at least 0.3 nats more than far ones.",
            AtLeast(0.3),
            where="all characters of TinyShakespeare",
            pilot=Pilot(0.549, 0.024),
            arms=(SHAKESPEARE,),
            contrast=level,
            metric=RunMetric(on_shakespeare, "near minus far"),
        ),
        Trained(
            "plays",
            "Plays: near keys are worth at least 0.3 nats more than far ones.",
            AtLeast(0.3),
            where="all characters of the plays",
            pilot=Pilot(0.735, 0.088),
            arms=(PLAYS,),
            contrast=level,
            metric=RunMetric(on_plays, "near minus far"),
        ),
        Trained(
            "brackets",
            "Closing brackets of the plays: near keys are worth at least 0.4 nats less.",
            AtMost(-0.4),
            bearing="against",
            where="closing brackets of the plays",
            pilot=Pilot(-1.26, 0.21),
            arms=(PLAYS,),
            contrast=level,
            metric=RunMetric(on_plays, "near minus far, brackets"),
        ),
        Trained(
            "far_shakespeare",
            "After 600 steps on TinyShakespeare far keys are worth at most 0.12 nats.",
            AtMost(0.12),
            role="secondary",
            pilot=Pilot(0.066, 0.01),
            arms=(SHAKESPEARE,),
            contrast=level,
            metric=RunMetric(on_shakespeare, "far"),
        ),
    ),
)
