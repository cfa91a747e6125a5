"""A claim: a sentence, the predictions that test it, and the settings in which it is tested."""

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
    """A metric that metrics.json does not hold, read from the run directory after training."""

    read: Callable[[Path], Values]  # takes the directory of a finished run; numbers (JSON)
    value: str  # the one of them that is judged
    # The score of a run that diverged: inf or -inf, whichever is worse, or NaN: it says nothing.
    diverged: float = math.nan


@dataclass(frozen=True)
class Pilot:
    """What a pilot (seeds from 1000 on) measured, from which the power is computed."""

    effect: float  # mean of the judged value; for an event or a proof, the share of seeds
    sd: float = 0.0  # standard deviation of the judged value over seeds


def difference(first: float, second: float) -> float:
    """The first arm minus the second, paired by seed: same initial weights, same batches."""
    return first - second


def level(first: float) -> float:
    """The first arm as it is."""
    return first


@dataclass(frozen=True)
class Prediction:
    """One prediction of a claim.

    Primary predictions decide the verdict on the sentence, and secondary ones are reported beside
    it; a control that fails makes the claim open; "shown" is not judged at all.
    """

    name: str  # short, unique within the claim
    says: str  # the prediction in one sentence
    criterion: Criterion  # the threshold, and which values agree with it
    role: Role = "primary"
    bearing: Bearing = "for"  # or against: a confirmed one makes the sentence false in its setting
    where: str = ""  # the setting, to complete "holds only if ..."
    pilot: Pilot | None = None
    budget: Budget = "quick"  # "full" for what the quick budget cannot afford
    seeds: int | None = None  # how many, for what is shown; all else follows the claim's looks
    timed: bool = False  # the values are times; one interleaved pair of measurements is a seed
    seconds: float = 0.0  # rough time of one measurement or run; 0: by the model's size


@dataclass(frozen=True)
class Trained(Prediction):
    """A prediction about training runs."""

    arms: tuple[Arm, ...] = ()  # what is trained
    # Takes the scores of the first arms for one seed, in order, and returns the judged value.
    contrast: Callable[..., float] = difference
    metric: str | RunMetric = "val_loss"  # a key of metrics.json; a diverged run has a loss of inf
    # Preconditions in every arm: dotted keys of the configuration, and "corpus" for its name.
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured(Prediction):
    """A prediction about what a pure function measures."""

    # Seed -> numbers (JSON); the same for the same seed, except for times.
    measure: Callable[[int], Values] = field(default=lambda seed: {})
    value: str = ""  # the one of them that is judged


@dataclass(frozen=True)
class Claim:
    """A textbook sentence with the predictions that decide it.

    Seeds are first_seed, first_seed + 1, ...; pilots use seeds from 1000 on.
    """

    says: str  # the sentence
    predictions: tuple[Prediction, ...]  # the most important first
    last_look: int = 10  # the most seeds that may be looked at: 10, 20 or 40
    first_seed: int = 0
    headline: str = ""  # the prediction in the table of verdicts; by default the first primary one
    figure: Callable[[Evidence], Figure] | None = None  # draws the evidence
    table: Callable[[Evidence], Sequence[Mapping[str, Any]]] | None = None  # below the figure
    notes: str = ""  # background for the reader, plain paragraphs
    order: int = 100  # place in the report
    name: str = ""  # of the directory; filled in when the claim is loaded

    def prediction(self, name: str) -> Prediction:
        """The prediction of that name."""
        return next(each for each in self.predictions if each.name == name)

    def declared_seeds(self, prediction: Prediction) -> list[int]:
        """All seeds that a prediction may use, in order."""
        count = prediction.seeds if prediction.seeds is not None else self.last_look
        return list(range(self.first_seed, self.first_seed + count))
