"""Do heads learn the dependencies of a grammar?"""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Measured, Pilot, RunMetric, Trained, level

from .measure import after_training, untrained

PLAYS = Arm("plays", ("data=plays", "trainer.max_steps=500", "trainer.val_check_interval=500"))


CLAIM = Claim(
    says="Heads learn the dependencies of a grammar.",
    first_seed=200,
    headline="bracket",
    order=16,
    predictions=(
        Trained(
            "bracket",
            "Closing bracket: the best head's weight on the opening one exceeds chance by 0.3.",
            AtLeast(0.3, unit="of the weight"),
            where="the closing bracket of a stage direction",
            pilot=Pilot(0.725, 0.088),
            arms=(PLAYS,),
            contrast=level,
            metric=RunMetric(after_training, "bracket: excess"),
        ),
        Trained(
            "bracket_used",
            "Without that head the loss at closing brackets rises by at least 0.5 nats.",
            AtLeast(0.5),
            where="the loss at the closing bracket, without that head",
            pilot=Pilot(2.15, 0.31),
            arms=(PLAYS,),
            contrast=level,
            metric=RunMetric(after_training, "bracket: price of the head"),
        ),
        Trained(
            "noun",
            "Repeated noun: no head's weight on its first mention exceeds chance by 0.12.",
            AtMost(0.12, unit="of the weight"),
            bearing="against",
            where="a repeated noun, within 500 steps",
            pilot=Pilot(0.019, 0.013),
            arms=(PLAYS,),
            contrast=level,
            metric=RunMetric(after_training, "noun: excess"),
        ),
        Trained(
            "neighbor",
            "Another head of that layer costs at most 0.2 nats there.",
            AtMost(0.2),
            role="secondary",
            pilot=Pilot(0.011, 0.014),
            arms=(PLAYS,),
            contrast=level,
            metric=RunMetric(after_training, "bracket: price of its neighbor"),
        ),
        Measured(
            "untrained",
            "Without training no head exceeds chance by 0.1.",
            AtMost(0.1, unit="of the weight"),
            role="control",
            pilot=Pilot(0.009, 0.006),
            measure=untrained,
            value="bracket: excess",
        ),
    ),
)
