"""At D = 512 without the scale: is the largest weight of a row 1?"""

from attnlab.claims import AtLeast, AtMost, Claim, Measured, Pilot

from .measure import at_512

CLAIM = Claim(
    says="At d_k = 512, unscaled, the largest weight of a row is essentially 1.",
    first_seed=300,
    order=11,
    predictions=(
        Measured(
            "median",
            "The median of the largest weight is at least 0.999 with 10 keys.",
            AtLeast(0.999, unit="of the weight"),
            where="the median row of 10 keys is meant",
            pilot=Pilot(0.9999, 0.00002),
            seconds=0.5,
            measure=at_512,
            value="median, 10 keys",
        ),
        Measured(
            "ten_keys",
            "The mean of the largest weight is at most 0.97 with 10 keys.",
            AtMost(0.97, unit="of the weight"),
            bearing="against",
            where="the mean over rows of 10 keys is meant",
            pilot=Pilot(0.952, 0.003),
            seconds=0.5,
            measure=at_512,
            value="mean, 10 keys",
        ),
        Measured(
            "many_keys",
            "The mean of the largest weight is at most 0.94 with 256 keys.",
            AtMost(0.94, unit="of the weight"),
            bearing="against",
            where="the mean over rows of 256 keys is meant",
            pilot=Pilot(0.911, 0.0045),
            seconds=0.5,
            measure=at_512,
            value="mean, 256 keys",
        ),
        Measured(
            "few_saturated",
            "At least a tenth of the rows of 10 keys has no weight above 0.9.",
            AtLeast(0.1, unit="of the rows"),
            role="secondary",
            pilot=Pilot(0.147, 0.0097),
            seconds=0.5,
            measure=at_512,
            value="share below 0.9, 10 keys",
        ),
        Measured(
            "scaled",
            "With the scale the largest of 10 weights is at most 0.4 on average.",
            AtMost(0.4, unit="of the weight"),
            role="secondary",
            pilot=Pilot(0.32, 0.00098),
            seconds=0.5,
            measure=at_512,
            value="scaled mean, 10 keys",
        ),
    ),
)
