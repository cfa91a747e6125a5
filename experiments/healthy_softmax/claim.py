"""Does 1/sqrt(D) keep the softmax healthy while a model trains?"""

from attnlab.claims import AtLeast, AtMost, Claim, Measured, Pilot

from .measure import saturation

CLAIM = Claim(
    says="The scale keeps the softmax from saturating during training.",
    first_seed=200,
    headline="fast",
    order=13,
    predictions=(
        Measured(
            "slow",
            "One head of 256, learning rate 1e-3: at most 10 % of the rows saturate.",
            AtMost(0.1, unit="of the rows"),
            where="learning rate 1e-3, one head of 256",
            pilot=Pilot(0.007, 0.006),
            seconds=25,
            measure=saturation,
            value="one head, rate 1e-3",
        ),
        Measured(
            "narrow",
            "16 heads of 16, learning rate 3e-3: at most 25 % of the rows saturate.",
            AtMost(0.25, unit="of the rows"),
            where="learning rate 3e-3, 16 heads of 16",
            pilot=Pilot(0.133, 0.022),
            seconds=25,
            measure=saturation,
            value="16 heads, rate 3e-3",
        ),
        Measured(
            "fast",
            "One head of 256, learning rate 3e-3: at least 35 % of the rows saturate.",
            AtLeast(0.35, unit="of the rows"),
            bearing="against",
            where="learning rate 3e-3, one head of 256",
            pilot=Pilot(0.536, 0.031),
            seconds=25,
            measure=saturation,
            value="one head, rate 3e-3",
        ),
        Measured(
            "unscaled",
            "The same without the scale: at least 80 %.",
            AtLeast(0.8, unit="of the rows"),
            role="secondary",
            pilot=Pilot(0.957, 0.01),
            seconds=25,
            measure=saturation,
            value="one head, unscaled, rate 3e-3",
        ),
        Measured(
            "inverse",
            "The same with a scale of 1/D: at most 10 %.",
            AtMost(0.1, unit="of the rows"),
            role="secondary",
            pilot=Pilot(0.0, 0.001),
            seconds=25,
            measure=saturation,
            value="one head, 1/D, rate 3e-3",
        ),
    ),
)
