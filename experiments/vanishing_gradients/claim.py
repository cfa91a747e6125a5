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
            pilot=Pilot(15.6, 1.6),
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
            pilot=Pilot(2.32, 0.05),
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
            pilot=Pilot(0.917, 0.074),
            seconds=3,
            measure=without_scale,
            value="scores at 512",
        ),
        Measured(
            "median_row",
            "At D = 512 the gradient of the median row of scores falls to a tenth at most.",
            AtMost(0.1, unit="times the norm with the scale"),
            where="the median row of scores is meant, D = 512",
            pilot=Pilot(0.00874, 0.0029),
            seconds=3,
            measure=without_scale,
            value="median row at 512",
        ),
        Measured(
            "jacobian",
            "At D = 512 the trace of the softmax's Jacobian falls to a fifth at most.",
            AtMost(0.2, unit="times the trace with the scale"),
            where="the Jacobian of the softmax is meant, D = 512",
            pilot=Pilot(0.129, 0.0082),
            seconds=3,
            measure=without_scale,
            value="trace at 512",
        ),
        Measured(
            "median_row_narrow",
            "At D = 8 even the median row keeps at least nine tenths.",
            AtLeast(0.9, unit="times the norm with the scale"),
            role="secondary",
            pilot=Pilot(0.996, 0.0076),
            seconds=3,
            measure=without_scale,
            value="median row at 8",
        ),
    ),
)
