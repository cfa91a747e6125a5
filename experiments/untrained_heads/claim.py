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
            pilot=Pilot(0.0881, 0.0094),
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
            pilot=Pilot(0.0003, 0.0004),
            seconds=2,
            measure=many_models,
            value="cosine difference",
        ),
        Measured(
            "one_picture",
            'In at least half of all models some head looks from "it" to "animal".',
            AtLeast(0.5, unit="of the models"),
            role="secondary",
            pilot=Pilot(0.761, 0.047),
            seconds=2,
            measure=many_models,
            value="models with a head on the answer",
        ),
        Measured(
            "planted",
            "A relationship that is planted in the weights is found in most heads.",
            AtLeast(0.5, unit="of the heads"),
            role="control",
            pilot=Pilot(0.97, 0.05),
            seconds=2,
            measure=many_models,
            value="planted",
        ),
    ),
)
