"""Does 1/sqrt(D) keep the softmax healthy while a model trains?"""

from attnlab.claims import AtLeast, AtMost, Claim, Measured, Pilot

from .measure import late, saturation

CLAIM = Claim(
    says="The scale keeps the softmax from saturating during training.",
    last_look=10,
    first_seed=300,
    headline="wide",
    order=13,
    predictions=(
        Measured(
            "wide",
            "One head of 256 at its best learning rate: at most 10 % of the rows saturate.",
            AtMost(0.1, unit="of the rows"),
            where="one head of 256 at its best learning rate, 100 steps",
            pilot=Pilot(0.0, 0.0),
            seconds=60,
            measure=saturation,
            value="one head",
        ),
        Measured(
            "narrow",
            "16 heads of 16 at their best learning rate: at most 10 % of the rows saturate.",
            AtMost(0.1, unit="of the rows"),
            where="16 heads of 16 at their best learning rate, 100 steps",
            pilot=Pilot(0.000137, 0.0002),
            seconds=60,
            measure=saturation,
            value="16 heads",
        ),
        Measured(
            "fast",
            "One head of 256 at the next larger rate, about three times as large: at least 10 %.",
            AtLeast(0.1, unit="of the rows"),
            bearing="against",
            where="one head of 256 at three times its best learning rate, 100 steps",
            pilot=Pilot(0.397, 0.14),
            seconds=60,
            measure=saturation,
            value="one head, three times its best rate",
        ),
        Measured(
            "unscaled",
            "One head of 256 without the scale, at its best learning rate: at least 50 %.",
            AtLeast(0.5, unit="of the rows"),
            role="secondary",
            pilot=Pilot(0.897, 0.011),
            seconds=60,
            measure=saturation,
            value="one head, unscaled",
        ),
        Measured(
            "late",
            "One head of 256 after 400 steps at one learning rate, 1e-3: at most 10 %.",
            AtMost(0.1, unit="of the rows"),
            role="secondary",
            budget="full",
            seeds=3,
            seconds=25,
            measure=late,
            value="one head",
        ),
    ),
)
