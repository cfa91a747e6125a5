"""Gradients without 1/sqrt(D): do they vanish?"""

from attnlab.claims import AtLeast, AtMost, Claim, Measured, Pilot

from .measure import without_scale

CLAIM = Claim(
    says="Without 1/sqrt(D) the gradients vanish.",
    first_seed=300,
    headline="weights",
    order=10,
    predictions=(
        Measured(
            "weights",
            "At D = 512 the gradient of the query weights is at least 5 times larger.",
            AtLeast(5.0, unit="times the norm with the scale"),
            bearing="against",
            where="the gradient of the query weights is meant, D = 512",
            pilot=Pilot(16.1, 1.4),
            seconds=3,
            measure=without_scale,
            value="W_q at 512",
        ),
        Measured(
            "weights_narrow",
            "At D = 8 it is at least 1.8 times larger.",
            AtLeast(1.8, unit="times the norm with the scale"),
            bearing="against",
            where="the gradient of the query weights is meant, D = 8",
            pilot=Pilot(2.30, 0.048),
            seconds=3,
            measure=without_scale,
            value="W_q at 8",
        ),
        Measured(
            "scores",
            "At D = 512 the gradient of all scores keeps at least half of its norm.",
            AtLeast(0.5, unit="times the norm with the scale"),
            bearing="against",
            where="the gradient of all scores is meant, D = 512",
            pilot=Pilot(0.95, 0.10),
            seconds=3,
            measure=without_scale,
            value="scores at 512",
        ),
        Measured(
            "median_row",
            "At D = 512 the gradient of the median row of scores falls to a tenth at most.",
            AtMost(0.1, unit="times the norm with the scale"),
            where="the median row of scores is meant, D = 512",
            pilot=Pilot(0.0088, 0.0033),
            seconds=3,
            measure=without_scale,
            value="median row at 512",
        ),
        Measured(
            "jacobian",
            "At D = 512 the trace of the softmax's Jacobian falls to a fifth at most.",
            AtMost(0.2, unit="times the trace with the scale"),
            where="the Jacobian of the softmax is meant, D = 512",
            pilot=Pilot(0.1285, 0.0094),
            seconds=3,
            measure=without_scale,
            value="trace at 512",
        ),
        Measured(
            "median_row_narrow",
            "At D = 8 even the median row keeps at least nine tenths.",
            AtLeast(0.9, unit="times the norm with the scale"),
            role="secondary",
            pilot=Pilot(0.996, 0.0088),
            seconds=3,
            measure=without_scale,
            value="median row at 8",
        ),
    ),
)
