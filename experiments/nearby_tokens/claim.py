"""Do nearby tokens matter more? Keys of trained models are taken away by distance."""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level

from .measure import on_plays, on_shakespeare

SHAKESPEARE = Arm("TinyShakespeare", ("data=tinyshakespeare",))
RATES = (3e-3, 1e-2, 3e-2)
LATE = Arm(
    "TinyShakespeare, late",
    ("data=tinyshakespeare", "trainer.max_steps=2400", "trainer.val_check_interval=2400"),
)
PLAYS = Arm("plays", ("data=plays", "trainer.max_steps=500", "trainer.val_check_interval=500"))


CLAIM = Claim(
    says="Nearby tokens matter more.",
    last_look=20,
    first_seed=300,
    headline="shakespeare",
    order=15,
    predictions=(
        Trained(
            "shakespeare",
            "TinyShakespeare: near keys are worth at least 0.3 nats more than far ones.",
            AtLeast(0.3),
            where="all characters of TinyShakespeare, 600 steps",
            pilot=Pilot(0.845, 0.075),
            arms=(SHAKESPEARE,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(on_shakespeare, "near minus far"),
        ),
        Trained(
            "plays",
            "Plays: near keys are worth at least 0.3 nats more than far ones.",
            AtLeast(0.3),
            where="all characters of the plays, 500 steps",
            pilot=Pilot(1.45, 0.17),
            arms=(PLAYS,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(on_plays, "near minus far"),
        ),
        Trained(
            "brackets",
            "Closing brackets of the plays: near keys are worth less than far ones.",
            AtMost(0.0),
            bearing="against",
            where="closing brackets of the plays, 500 steps",
            pilot=Pilot(-0.91, 0.58),
            arms=(PLAYS,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(on_plays, "near minus far, brackets"),
        ),
        Trained(
            "far_shakespeare",
            "After 600 steps on TinyShakespeare far keys are worth at most 0.12 nats.",
            AtMost(0.12),
            role="secondary",
            pilot=Pilot(0.0615, 0.038),
            arms=(SHAKESPEARE,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(on_shakespeare, "far"),
        ),
        Trained(
            "shakespeare_late",
            "After 2,400 steps on TinyShakespeare at one learning rate, 3e-3: at least 0.3 more.",
            AtLeast(0.3),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(LATE,),
            contrast=level,
            metric=RunMetric(on_shakespeare, "near minus far"),
        ),
    ),
)
