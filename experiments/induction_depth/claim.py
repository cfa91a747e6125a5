"""Does induction need two layers of attention?"""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level

from .measure import after_training

TWO = Arm("two layers", ("model.n_layer=2",))
# 92 channels instead of 64: one layer has as many parameters as two.
ONE = Arm("one layer", ("model.n_layer=1", "model.n_embd=92"))
SMEARED = Arm("one layer, smeared", (*ONE.overrides, "model.smear=1"))
ACCURACY = RunMetric(after_training, "accuracy")
INDUCTION = RunMetric(after_training, "best")


CLAIM = Claim(
    says="Induction needs two layers.",
    last_look=20,
    first_seed=200,
    headline="one_layer",
    order=17,
    predictions=(
        Trained(
            "two_layers",
            "Two layers give at least 90 % of the answers.",
            AtLeast(0.9, unit="of the answers"),
            where="two layers can",
            pilot=Pilot(1.0, 0.001),
            seconds=16,
            arms=(TWO,),
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "one_layer",
            "One layer of as many parameters gives at most 60 % of the answers.",
            AtMost(0.6, unit="of the answers"),
            where="one layer cannot",
            pilot=Pilot(0.39, 0.05),
            seconds=15,
            arms=(ONE,),
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "smeared",
            "One layer of symbols that are mixed with their predecessors gives at least 90 %.",
            AtLeast(0.9, unit="of the answers"),
            bearing="against",
            where="symbols are mixed with their predecessors before one layer",
            pilot=Pilot(1.0, 0.001),
            seconds=15,
            arms=(SMEARED,),
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "induction_head",
            "In it, a head has at least half of its weight on the symbols that followed.",
            AtLeast(0.5, unit="of the weight"),
            role="secondary",
            pilot=Pilot(0.95, 0.01),
            seconds=15,
            arms=(SMEARED,),
            contrast=level,
            metric=INDUCTION,
        ),
        Trained(
            "no_induction_head",
            "Without that, no head of one layer has more than 0.4 there.",
            AtMost(0.4, unit="of the weight"),
            role="secondary",
            pilot=Pilot(0.26, 0.05),
            seconds=15,
            arms=(ONE,),
            contrast=level,
            metric=INDUCTION,
        ),
    ),
)
