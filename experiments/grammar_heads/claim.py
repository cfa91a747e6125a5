"""Do heads learn the dependencies of a grammar?"""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Measured, Pilot, RunMetric, Trained, level

from .measure import after_training, untrained

RATES = (1e-3, 3e-3, 1e-2)
PLAYS = Arm("plays", ("data=plays", "trainer.max_steps=500", "trainer.val_check_interval=500"))
LATE = Arm("plays, late", ("trainer.max_steps=2000", "trainer.val_check_interval=2000"))


CLAIM = Claim(
    says="Heads learn the dependencies of a grammar.",
    first_seed=300,
    headline="bracket",
    order=16,
    predictions=(
        Trained(
            "bracket",
            "Closing bracket: the best head's weight on the opening one exceeds chance by 0.3.",
            AtLeast(0.3, unit="of the weight"),
            where="the closing bracket of a stage direction, 500 steps",
            pilot=Pilot(0.711, 0.13),
            arms=(PLAYS,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(after_training, "bracket: excess"),
        ),
        Trained(
            "bracket_used",
            "Without that head the loss at closing brackets rises.",
            AtLeast(0.0),
            role="secondary",
            pilot=Pilot(1.2, 1.1),
            arms=(PLAYS,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(after_training, "bracket: price of the head"),
        ),
        Trained(
            "noun",
            "Repeated noun: no head's weight on its first mention exceeds chance by 0.12.",
            AtMost(0.12, unit="of the weight"),
            bearing="against",
            where="a repeated noun, within 500 steps",
            pilot=Pilot(0.00426, 0.011),
            arms=(PLAYS,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(after_training, "noun: excess"),
        ),
        Trained(
            "neighbor",
            "Another head of that layer costs at most 0.2 nats there.",
            AtMost(0.2),
            role="secondary",
            pilot=Pilot(-0.00625, 0.01),
            arms=(PLAYS,),
            rates=RATES,
            contrast=level,
            metric=RunMetric(after_training, "bracket: price of its neighbor"),
        ),
        Trained(
            "bracket_late",
            "After 2,000 steps at one learning rate, 3e-3: the bracket's excess is at least 0.3.",
            AtLeast(0.3, unit="of the weight"),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(LATE,),
            contrast=level,
            metric=RunMetric(after_training, "bracket: excess"),
        ),
        Trained(
            "noun_late",
            "After 2,000 steps at one learning rate, 3e-3: the noun's excess is at most 0.12.",
            AtMost(0.12, unit="of the weight"),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(LATE,),
            contrast=level,
            metric=RunMetric(after_training, "noun: excess"),
        ),
        Measured(
            "untrained",
            "Without training no head exceeds chance by 0.1.",
            AtMost(0.1, unit="of the weight"),
            role="control",
            pilot=Pilot(0.0164, 0.011),
            measure=untrained,
            value="bracket: excess",
        ),
    ),
)
