"""A claim: a sentence, the predictions that test it, and the settings in which it is tested.

Plain data and small functions. `experiments/<claim>/claim.py` defines one as `CLAIM`; the rest of
this package runs and judges it without knowing which one it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnlab.claims.criteria import Criterion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnlab.claims.results import Evidence

Budget = Literal["quick", "full"]
BUDGETS: tuple[Budget, ...] = ("quick", "full")
Role = Literal["primary", "secondary", "control", "shown"]
Bearing = Literal["for", "against"]
Values = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: Hydra overrides on top of `experiment=<claim>`."""

    name: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunMetric:
    """A metric that metrics.json does not hold, read from the run directory after training.

    Args:
        read: takes the directory of a finished run and returns numbers (JSON).
        value: the one of them that is judged.
        diverged: the score of a run that diverged: inf or -inf, whichever is the worse side, or
            NaN where a diverged run says nothing about this metric.
    """

    read: Callable[[Path], Values]
    value: str
    diverged: float = math.nan


@dataclass(frozen=True)
class Pilot:
    """What a pilot (seeds from 1000 on) measured; the power of a prediction is computed from it.

    Args:
        effect: mean of the judged value; for an event or a proof, the share of seeds.
        sd: standard deviation of the judged value over seeds.
    """

    effect: float
    sd: float = 0.0


def difference(first: float, second: float) -> float:
    """The first arm minus the second, paired by seed: same initial weights, same batches."""
    return first - second


def level(first: float) -> float:
    """The first arm as it is."""
    return first


@dataclass(frozen=True)
class Prediction:
    """One prediction of a claim.

    Args:
        name: short, unique within the claim.
        says: the prediction in one sentence.
        criterion: the threshold, and which values agree with it.
        role: primary predictions decide the verdict on the sentence; secondary ones are reported
            beside it; a control that fails makes the claim open; "shown" is not judged at all.
        bearing: whether a confirmed primary prediction speaks for the sentence or against it.
        where: the setting, to complete "holds only if ...".
        pilot: effect and spread that a pilot found.
        budget: "full" for a prediction that the quick budget cannot afford.
        seeds: how many, for what is shown; everything else follows the claim's looks.
        timed: the values are times; one interleaved pair of measurements is a seed.
        seconds: rough time of one measurement or run; 0 estimates it from the model's size.
    """

    name: str
    says: str
    criterion: Criterion
    role: Role = "primary"
    bearing: Bearing = "for"
    where: str = ""
    pilot: Pilot | None = None
    budget: Budget = "quick"
    seeds: int | None = None
    timed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Trained(Prediction):
    """A prediction about training runs.

    Args:
        arms: what is trained; `contrast` gets the scores of the first arms, in order.
        contrast: takes the scores of one seed, one an argument, and returns the judged value.
        metric: a key of metrics.json, or a `RunMetric`. A run that diverged has a loss of inf.
        given: preconditions, dotted keys of the configuration with their values, in every arm;
            "corpus" is the name of the corpus.
    """

    arms: tuple[Arm, ...] = ()
    contrast: Callable[..., float] = difference
    metric: str | RunMetric = "val_loss"
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured(Prediction):
    """A prediction about what a pure function measures.

    Args:
        measure: seed -> numbers (JSON); the same for the same seed, except for times.
        value: the one of them that is judged.
    """

    measure: Callable[[int], Values] = field(default=lambda seed: {})
    value: str = ""


@dataclass(frozen=True)
class Claim:
    """A textbook sentence with the predictions that decide it.

    Args:
        says: the sentence.
        predictions: the most important first.
        last_look: the most seeds that may be looked at: 10, 20 or 40.
        first_seed: seeds are first_seed, first_seed + 1, ... Pilots use seeds from 1000 on.
        headline: the prediction whose effect stands in the table of verdicts; the first primary
            one if empty.
        figure: draws the evidence.
        table: rows of a table to stand below the figure.
        notes: background for the reader, plain paragraphs.
        order: place in the report.
        name: of the directory; filled in when the claim is loaded.
    """

    says: str
    predictions: tuple[Prediction, ...]
    last_look: int = 10
    first_seed: int = 0
    headline: str = ""
    figure: Callable[[Evidence], Figure] | None = None
    table: Callable[[Evidence], Sequence[Mapping[str, Any]]] | None = None
    notes: str = ""
    order: int = 100
    name: str = ""

    def prediction(self, name: str) -> Prediction:
        """The prediction of that name."""
        return next(each for each in self.predictions if each.name == name)

    def declared_seeds(self, prediction: Prediction) -> list[int]:
        """All seeds that a prediction may use, in order."""
        count = prediction.seeds if prediction.seeds is not None else self.last_look
        return list(range(self.first_seed, self.first_seed + count))
