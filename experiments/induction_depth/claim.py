"""Does induction need two layers of attention?"""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level

from .measure import after_training

RATES = (1.5e-3, 4e-3, 1e-2)
TWO = Arm("two layers", ("model.n_layer=2",))
# 92 channels instead of 64: one layer has as many parameters as two.
ONE = Arm("one layer", ("model.n_layer=1", "model.n_embd=92"))
SMEARED = Arm("one layer, smeared", (*ONE.overrides, "model.smear=1"))
NO_POSITIONS = "model.learned_positions=false"
# Rotary embeddings need an even width of a head.
ROTARY = Arm(
    "one layer, rotary", ("model.n_layer=1", "model.n_embd=96", "attn=rotary", NO_POSITIONS)
)
NOPE = Arm("one layer, no positions", (*ONE.overrides, NO_POSITIONS))
ACCURACY = RunMetric(after_training, "accuracy")
INDUCTION = RunMetric(after_training, "best")


def better(first: float, second: float) -> float:
    """The larger of two accuracies."""
    return max(first, second)


CLAIM = Claim(
    says="Induction needs two layers.",
    last_look=10,
    first_seed=300,
    headline="one_layer",
    order=17,
    predictions=(
        Trained(
            "two_layers",
            "Two layers give at least 90 % of the answers.",
            AtLeast(0.9, unit="of the answers"),
            where="two layers can, within 3,200 steps",
            pilot=Pilot(1.0, 0.0),
            arms=(TWO,),
            contrast=level,
            metric=ACCURACY,
            rates=RATES,
        ),
        Trained(
            "two_layers_head",
            "In two layers, a head has at least half of its weight on the symbols that followed.",
            AtLeast(0.5, unit="of the weight"),
            where="two layers do it by an induction head",
            pilot=Pilot(0.979, 0.026),
            arms=(TWO,),
            contrast=level,
            metric=INDUCTION,
            rates=RATES,
        ),
        Trained(
            "one_layer",
            "One layer of as many parameters gives at most 80 % of the answers.",
            AtMost(0.8, unit="of the answers"),
            where="one layer cannot, within 3,200 steps",
            pilot=Pilot(0.649, 0.035),
            arms=(ONE,),
            contrast=level,
            metric=ACCURACY,
            rates=RATES,
        ),
        Trained(
            "smeared",
            "One layer of symbols that are mixed with their predecessors gives at least 90 %.",
            AtLeast(0.9, unit="of the answers"),
            bearing="against",
            where="symbols are mixed with their predecessors before one layer",
            pilot=Pilot(1.0, 0.0),
            arms=(SMEARED,),
            contrast=level,
            metric=ACCURACY,
            rates=RATES,
        ),
        Trained(
            "induction_head",
            "In it, a head has at least half of its weight on the symbols that followed.",
            AtLeast(0.5, unit="of the weight"),
            role="secondary",
            pilot=Pilot(0.885, 0.020),
            arms=(SMEARED,),
            contrast=level,
            metric=INDUCTION,
            rates=RATES,
        ),
        Trained(
            "no_induction_head",
            "Without that, no head of one layer has more than 0.5 there.",
            AtMost(0.5, unit="of the weight"),
            role="secondary",
            pilot=Pilot(0.268, 0.008),
            arms=(ONE,),
            contrast=level,
            metric=INDUCTION,
            rates=RATES,
        ),
        Trained(
            "positions",
            "One layer with rotary or without positions, at one learning rate: at most 80 %.",
            AtMost(0.8, unit="of the answers"),
            role="secondary",
            budget="full",
            seeds=3,
            arms=(ROTARY, NOPE),
            contrast=better,
            metric=ACCURACY,
        ),
    ),
)
