"""Heads of untrained models: what they attend to, and what a cosine between them shows."""

from attnlab.claims import AtLeast, Claim, Measured, Pilot, Within

from .measure import WORDS, many_models

CLAIM = Claim(
    says="Even the heads of an untrained model show relationships between words.",
    first_seed=300,
    order=12,
    predictions=(
        Measured(
            "peaks",
            'The share of heads that look from "it" to "animal" is chance, within 0.04.',
            Within(0.04, center=1 / len(WORDS), unit="of the heads"),
            bearing="against",
            where="heads of many untrained models are counted",
            pilot=Pilot(0.0871, 0.0085),
            seconds=2,
            measure=many_models,
            value="peak on the answer",
        ),
        Measured(
            "cosine",
            "Outputs of two heads have the cosine of heads that look at no other word.",
            Within(0.005, unit="of mean |cosine|"),
            bearing="against",
            where="the cosine between heads is the evidence",
            pilot=Pilot(0.000167, 0.00035),
            seconds=2,
            measure=many_models,
            value="cosine difference",
        ),
        Measured(
            "one_picture",
            'In at least half of all models some head looks from "it" to "animal".',
            AtLeast(0.5, unit="of the models"),
            role="secondary",
            pilot=Pilot(0.766, 0.042),
            seconds=2,
            measure=many_models,
            value="models with a head on the answer",
        ),
        Measured(
            "planted",
            "A relationship that is planted in the weights is found in most heads.",
            AtLeast(0.5, unit="of the heads"),
            role="control",
            pilot=Pilot(1, 0),
            seconds=2,
            measure=many_models,
            value="planted",
        ),
    ),
)
