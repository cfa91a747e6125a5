"""A claim: a sentence, the predictions that test it, and the settings in which it is tested."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnlab.claims.criteria import Criterion, difference
from attnlab.runs.best_rates import Choice

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
    value: str  # the key of the judged number
    # The score of a diverged run: inf or -inf, whichever is worse, or NaN, which decides nothing.
    diverged: float = math.nan


@dataclass(frozen=True)
class Pilot:
    """The result of a pilot (seeds from 1000 on), from which the power is computed."""

    effect: float  # mean of the judged value; the share of seeds for Happens and Proof
    sd: float = 0.0  # standard deviation of the judged value over seeds


@dataclass(frozen=True)
class Prediction:
    """One prediction of a claim.

    Primary predictions decide the verdict on the sentence, and secondary ones are reported beside
    it; a control that fails makes the claim open; "shown" is not judged at all.
    """

    name: str  # short, unique within the claim
    says: str  # the prediction in one sentence
    criterion: Criterion  # which values agree with the prediction
    role: Role = "primary"
    bearing: Bearing = "for"  # "against": if confirmed, the sentence is false in its setting
    where: str = ""  # the setting, as it follows "holds only if"
    pilot: Pilot | None = None
    budget: Budget = "quick"  # "full" for long runs
    # How many; only for roles that do not decide, which use `last_look` without it.
    seeds: int | None = None
    timed: bool = False  # the values are times; a seed is an interleaved pair of measurements
    seconds: float = 0.0  # rough time of one measurement or run; 0 estimates it
    # Set when the claim is loaded: the prediction of which this is one length, that length, and
    # the learning rate that the pilots chose for each arm.
    part_of: str = ""
    steps: int = 0
    chosen: Mapping[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained(Prediction):
    """A prediction about training runs."""

    arms: tuple[Arm, ...] = ()  # what is trained
    # Takes the scores of the first arms for one seed, in order, and returns the judged value.
    contrast: Callable[..., float] = difference
    metric: str | RunMetric = "val_loss"  # a loss in metrics.json; inf for a run that diverged
    # Preconditions in every arm: dotted keys of the configuration, and "corpus" for its name.
    given: Mapping[str, Any] = field(default_factory=dict)
    # Learning rates, ascending, at most a factor sqrt(10) apart; each arm is trained at its best.
    rates: tuple[float, ...] = ()
    # Numbers of training steps, such as n and 4 n: one prediction, which must hold at each.
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Measured(Prediction):
    """A prediction about a number that a pure function measures."""

    # Seed -> numbers (JSON); equal for equal seeds, except for times.
    measure: Callable[[int], Values] = field(default=lambda seed: {})
    value: str = ""  # the key of the judged number


@dataclass(frozen=True)
class Claim:
    """A textbook sentence with the predictions that decide it.

    Seeds are first_seed, first_seed + 1, ...; pilots use seeds from 1000 on.
    """

    says: str  # the sentence
    predictions: tuple[Prediction, ...]  # the most important first
    last_look: int = 10  # the largest number of seeds that may be used: 10, 20 or 40
    first_seed: int = 0
    headline: str = ""  # the prediction in the table of verdicts; default: the first primary one
    order: int = 100  # position in the report
    # Set when the claim is loaded: the name of its directory, `figure` and `table` of the file
    # figure.py beside claim.py, and the text of background.md.
    name: str = ""
    figure: Callable[[Evidence], Figure] | None = None  # draws the evidence
    table: Callable[[Evidence], Sequence[Mapping[str, Any]]] | None = None  # rows below the figure
    notes: str = ""

    def prediction(self, name: str) -> Prediction:
        """The prediction of that name."""
        return next(each for each in self.predictions if each.name == name)

    def declared_seeds(self, prediction: Prediction) -> list[int]:
        """All seeds that a prediction may use, in order."""
        count = prediction.seeds if prediction.seeds is not None else self.last_look
        return list(range(self.first_seed, self.first_seed + count))
