"""A claim: a sentence and the predictions that test it, in experiments/<claim>/claim.yaml.

Committing the file declares the claim: rows name the commit at which they were made, and
`rows.undeclared` compares the predictions of that commit with today's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from attnlab.claims.judge import FEWEST, Outcome, judge, sentence
from attnlab.claims.trials import Arm, Row, Rows, Run, having, number, tests
from attnlab.errors import BadInput
from attnlab.files import read_yaml

PILOTS = range(1000, 1005)  # seeds of runs before the declaration; the first three choose rates
CONTRASTS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "level": lambda x: x[0],
    "difference": lambda x: x[0] - x[1],  # it is paired: same weights, same batches
    "interaction": lambda x: x[0] - x[1] - x[2] + x[3],
}
Role = Literal["for", "against", "control", "secondary", "shown"]
Model = TypeVar("Model", bound="Declared")


class Declared(BaseModel, extra="forbid", frozen=True):
    """What claim.yaml or ranking.yaml declares."""

    file: Path = Path("claim.yaml")

    @classmethod
    def read(cls: type[Model], file: Path) -> Model:
        """Read the file; BadInput names the entry that is not valid."""
        try:
            return cls(**read_yaml(file), file=file.resolve())
        except (ValidationError, TypeError) as error:
            raise BadInput(f"{file} cannot be read: {error}") from error

    @property
    def folder(self) -> Path:
        """The directory of its file, rows, page and modules, which gives it its name."""
        return self.file.parent


class Prediction(BaseModel, extra="forbid", frozen=True):
    """One prediction. Its value for a seed is a contrast of the metric of its arms."""

    says: str
    arms: tuple[str, ...]
    above: float = -math.inf
    below: float = math.inf
    always: bool = False  # no statistics: a single miss refutes
    unit: str = "nats"
    role: Role = "for"  # "against": if confirmed, the sentence is false where it was tested
    where: str = ""  # the setting in the author's words, as it follows "True:" or "False:"
    metric: str = "val_loss"  # a key of the row's values: of metrics.json, or of `read`
    read: str = ""  # measure.function: further values, from the directory of a finished run
    worst: float = math.nan  # the metric of a run that diverged
    contrast: Literal["", "difference", "level", "min", "max", "interaction"] = ""
    weights: tuple[float, ...] = ()  # one an arm: the contrast is the weighted sum
    rates: tuple[float, ...] = ()  # ascending, a factor of sqrt(10) apart at most
    lengths: tuple[int, ...] = ()  # numbers of steps, such as n and 4 n; it must hold at each
    first_seed: int | None = None  # instead of the claim's, for a prediction that was added later
    seeds: int | None = None  # fewer, for roles that do not decide
    long: bool = False  # only run with --long

    @model_validator(mode="after")
    def _check(self) -> "Prediction":
        if math.isinf(self.above) and math.isinf(self.below):
            raise ValueError("a prediction needs above or below, or both")
        if self.weights and (self.contrast or len(self.weights) != len(self.arms)):
            raise ValueError("weights are one number for each arm, instead of a contrast")
        if self.seeds is not None and self.role in ("for", "against", "control"):
            raise ValueError(f"a prediction with the role {self.role} uses all seeds of its claim")
        steps = [b / a for a, b in zip(self.rates, self.rates[1:], strict=False)]
        if self.rates and not (steps and all(1 < step <= 3.4 for step in steps)):
            raise ValueError(f"{self.rates} must be rates that ascend by at most sqrt(10) each")
        return self

    def value(self, scores: Sequence[float]) -> float:
        """The value of a seed, from the metric of its arms: by default, the difference of the
        first two, or the level of one."""
        if self.weights:
            return sum(w * x for w, x in zip(self.weights, scores, strict=False))
        return CONTRASTS[self.contrast or ("difference" if len(scores) > 1 else "level")](scores)


class Claim(Declared, frozen=True):
    """A sentence with its predictions, the most important one first."""

    says: str
    order: int = 100
    otherwise: str = ""  # what was shown if it does not hold, such as "no effect above 0.03 nats"
    base: tuple[str, ...]  # Hydra overrides that all arms share, such as experiment=unscaled
    first_seed: int
    most_seeds: Literal[10, 20, 40] = 10
    arms: dict[str, tuple[str, ...]]  # overrides; or [measure.function], without training
    predictions: dict[str, Prediction]

    @model_validator(mode="after")
    def _check(self) -> "Claim":
        for name, each in self.predictions.items():
            if unknown := set(each.arms) - set(self.arms):
                raise ValueError(f"{name} names no arm: {', '.join(sorted(unknown))}")
            if not set(self.seeds_of(each)).isdisjoint(PILOTS):
                raise ValueError("seeds from 1000 on are those of pilots")
        return self

    def seeds_of(self, prediction: Prediction) -> range:
        """The seeds that test a prediction."""
        first = self.first_seed if prediction.first_seed is None else prediction.first_seed
        return range(first, first + (prediction.seeds or self.most_seeds))

    def arms_of(self, prediction: Prediction, steps: int | None) -> list[Arm]:
        """The arms of a prediction at one of its lengths; None: as the base says."""
        end = (f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}")
        arms = []
        for own in (self.arms[name] for name in prediction.arms):
            words = own if is_measurement(own) else (*self.base, *own, *(end if steps else ()))
            arms.append(Arm(words, prediction.rates))
        return arms


@dataclass(frozen=True)
class Part:
    """A prediction at one length of training, with what its rows say."""

    of: str  # the prediction's key in claim.yaml
    prediction: Prediction
    steps: int | None  # None: as the claim's base says
    arms: Sequence[Arm]
    seeds: Sequence[int]
    rows: dict[str, list[Row]]  # arm -> a row a seed, up to the first seed that some arm lacks
    scores: dict[str, list[float]]
    values: Sequence[float]  # one a seed: what is judged
    outcome: Outcome

    @property
    def name(self) -> str:
        """The prediction's name, and its length if it has several."""
        return self.of if self.steps is None else f"{self.of}_{self.steps}"

    @property
    def verdict(self) -> str:
        """Confirmed, refuted or open; "shown" for what is not judged."""
        if self.prediction.role == "shown" or len(self.seeds) < FEWEST:
            return "shown"
        return self.outcome.verdict


def parts_of(claim: Claim, rows: Rows, seeds: Sequence[int] = ()) -> list[Part]:
    """The predictions of a claim at each of their lengths, judged by the rows of their seeds, or
    of others, such as those of pilots."""
    parts = []
    for name, each in claim.predictions.items():
        own, metric = seeds or claim.seeds_of(each), each.metric
        worst = math.inf if metric == "val_loss" else each.worst
        for steps in each.lengths or (None,):
            arms = claim.arms_of(each, steps)
            found = zip(*(having(metric, tests(x, rows, own)[0]) for x in arms), strict=False)
            by_arm = dict(zip(each.arms, map(list, zip(*found, strict=True)), strict=False))
            scores = {a: [number(row, metric, worst) for row in of] for a, of in by_arm.items()}
            values = [each.value(of_seed) for of_seed in zip(*scores.values(), strict=True)]
            outcome = judge(values, each.above, each.below, each.always, len(own))
            parts.append(Part(name, each, steps, arms, own, by_arm, scores, values, outcome))
    return parts


def judge_claim(claim: Claim, rows: Rows) -> tuple[str, list[Part]]:
    """The verdict on the sentence, and every prediction at every length."""
    parts = parts_of(claim, rows)
    return sentence([(each.role, verdict) for each, verdict in verdicts(parts)]), parts


def verdicts(parts: Sequence[Part]) -> list[tuple[Prediction, str]]:
    """The verdict on each prediction; open if its lengths do not all say the same."""
    by_name = [list(of) for _, of in groupby(parts, lambda part: part.of)]
    said = [(of[0].prediction, {part.verdict for part in of}) for of in by_name]
    return [(each, verdict.pop() if len(verdict) == 1 else "open") for each, verdict in said]


def needed(claim: Claim, rows: Rows, *, pilots: bool = False, long: bool = True) -> list[Run]:
    """The runs that can be made now; after them there may be more.

    Pilots try the rates, then run a few seeds at the best one. The declared test starts with ten
    seeds, and goes on to the next stage while that can decide.
    """
    found: dict[Run, None] = {}
    for part in parts_of(claim, rows):
        if (part.prediction.long and not long) or (pilots and part.prediction.role == "shown"):
            continue
        if pilots:
            seeds: Sequence[int] = PILOTS[: 1 if part.prediction.seeds else len(PILOTS)]
        else:
            go_on = part.outcome.undecided and part.outcome.n >= FEWEST
            seeds = part.seeds[: 2 * part.outcome.n if go_on else FEWEST]
        for arm in part.arms:
            found |= dict.fromkeys(tests(arm, rows, seeds)[1])
    return list(found)


def is_measurement(overrides: Sequence[str]) -> bool:
    """Whether a run only calls a function of its seed: [measure.function]."""
    return len(overrides) == 1 and "=" not in overrides[0]


def function(folder: Path, name: str) -> Callable[..., Any]:
    """`module.function`, from a file beside claim.yaml; BadInput if there is none."""
    try:
        return resolve_name(f"{folder.parent.name}.{folder.name}.{name}")
    except (ModuleNotFoundError, AttributeError) as error:
        raise BadInput(f"{name} of {folder} cannot be imported: {error}") from error
