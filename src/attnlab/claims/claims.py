"""A claim: a sentence and the predictions that test it, in experiments/<claim>/claim.yaml.

Committing the file declares the claim: rows name the commit at which they were made, and
`rows.undeclared` compares the predictions of that commit with today's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from attnlab.claims.judge import FEWEST, Criterion, Outcome, judge, sentence
from attnlab.claims.trials import Arm, Row, Rows, Run, has, number, tests
from attnlab.errors import BadInput
from attnlab.files import read_yaml

PILOTS = range(1000, 1005)  # seeds of runs before the declaration; the first three choose rates
WEIGHTS = {  # of contrasts with a name; a difference is paired: same weights, same batches
    "difference": [1.0, -1.0],
    "level": [1.0],
    "interaction": [1.0, -1.0, -1.0, 1.0],
}
Role = Literal["for", "against", "control", "secondary", "shown"]
Model = TypeVar("Model", bound=BaseModel)


class Prediction(BaseModel, extra="forbid", frozen=True):
    """One prediction. Its value for a seed is a contrast of the metric of its arms."""

    says: str
    arms: list[str]
    above: float | None = None
    below: float | None = None
    always: bool = False  # no statistics: a single miss refutes
    unit: str = "nats"
    role: Role = "for"  # "against": if confirmed, the sentence is false where it was tested
    where: str = ""  # the setting in the author's words, as it follows "True:" or "False:"
    metric: str = "val_loss"  # a key of the row's values: of metrics.json, or of `read`
    read: str = ""  # measure.function: further values, from the directory of a finished run
    worst: float = math.nan  # the metric of a run that diverged
    contrast: Literal["", "difference", "level", "min", "max", "interaction"] = ""
    weights: list[float] = []  # one an arm: the contrast is the weighted sum
    rates: list[float] = []  # ascending, a factor of sqrt(10) apart at most
    lengths: list[int] = []  # numbers of steps, such as n and 4 n; it must hold at each
    first_seed: int | None = None  # instead of the claim's, for a prediction that was added later
    seeds: int | None = None  # fewer, for roles that do not decide
    long: bool = False  # only run with --long

    @model_validator(mode="after")
    def _check(self) -> "Prediction":
        if self.above is self.below is None:
            raise ValueError("a prediction needs above or below, or both")
        if self.weights and (self.contrast or len(self.weights) != len(self.arms)):
            raise ValueError("weights are one number for each arm, instead of a contrast")
        if self.seeds is not None and self.role in ("for", "against", "control"):
            raise ValueError(f"a prediction with the role {self.role} uses all seeds of its claim")
        steps = [b / a for a, b in zip(self.rates, self.rates[1:], strict=False)]
        if self.rates and not (steps and all(1 < step <= 3.4 for step in steps)):
            why = "must ascend by at most sqrt(10) each; a single one is an override of the arms"
            raise ValueError(f"the rates {self.rates} {why}")
        return self

    @property
    def criterion(self) -> Criterion:
        """The range of values that agree."""
        low = -math.inf if self.above is None else self.above
        high = math.inf if self.below is None else self.below
        return Criterion(low, high, self.always)

    def value(self, scores: Sequence[float]) -> float:
        """The value of a seed, from the metric of its arms: by default, the difference of the
        first two, or the level of one."""
        if self.contrast in ("min", "max"):
            return min(scores) if self.contrast == "min" else max(scores)
        named = self.contrast or ("difference" if len(scores) > 1 else "level")
        weights = self.weights or WEIGHTS[named]
        return sum(w * x for w, x in zip(weights, scores, strict=False))


class Claim(BaseModel, extra="forbid", frozen=True):
    """A sentence with its predictions, the most important one first."""

    says: str
    order: int = 100
    otherwise: str = ""  # what was shown if it does not hold, such as "no effect above 0.03 nats"
    base: list[str]  # Hydra overrides that all arms share, such as experiment=unscaled
    first_seed: int
    most_seeds: Literal[10, 20, 40] = 10
    arms: dict[str, list[str]]  # overrides; or [measure.function] of a seed, without training
    predictions: dict[str, Prediction]
    file: Path = Field(default=Path("claim.yaml"), exclude=True)

    @model_validator(mode="after")
    def _check(self) -> "Claim":
        for name, each in self.predictions.items():
            if unknown := set(each.arms) - set(self.arms):
                raise ValueError(f"{name} names no arm: {', '.join(sorted(unknown))}")
            if not set(self.seeds_of(each)).isdisjoint(PILOTS):
                raise ValueError("seeds from 1000 on are those of pilots")
        return self

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.file.parent.name

    def seeds_of(self, prediction: Prediction) -> range:
        """The seeds that test a prediction."""
        first = self.first_seed if prediction.first_seed is None else prediction.first_seed
        return range(first, first + (prediction.seeds or self.most_seeds))


def read_declared(source: Path, model: type[Model], **given: Any) -> Model:
    """Read claim.yaml or ranking.yaml; BadInput names the entry that is not valid."""
    try:
        return model(**read_yaml(source), **given)
    except (ValidationError, TypeError) as error:
        raise BadInput(f"{source} cannot be read: {error}") from error


def read_claim(file: Path) -> Claim:
    """Read claim.yaml."""
    return read_declared(file, Claim, file=file)


@dataclass(frozen=True)
class Part:
    """A prediction at one length of training, with what its rows say."""

    of: str
    prediction: Prediction
    steps: int | None  # None: as the claim's base says
    arms: Sequence[Arm]
    seeds: Sequence[int]
    rows: dict[str, list[Row]] = field(default_factory=dict)  # arm -> a row a seed
    scores: dict[str, list[float]] = field(default_factory=dict)
    values: Sequence[float] = ()  # one a seed: what is judged
    outcome: Outcome | None = None  # None without rows

    @property
    def name(self) -> str:
        """The prediction's name, and its length if it has several."""
        return self.of if self.steps is None else f"{self.of}_{self.steps}"

    @property
    def verdict(self) -> str:
        """Confirmed, refuted or open; "shown" for what is not judged."""
        if self.prediction.role == "shown" or len(self.seeds) < FEWEST:
            return "shown"
        return self.outcome.verdict if self.outcome else "open"


def parts_of(claim: Claim) -> list[Part]:
    """The predictions of a claim at each of their lengths, without rows."""
    parts = []
    for name, each in claim.predictions.items():
        for steps in each.lengths or (None,):
            end = (f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}")
            arms = []
            for arm in each.arms:
                words = own = tuple(claim.arms[arm])
                if not is_measurement(own):
                    words = (*claim.base, *own, *(end if steps else ()))
                arms.append(Arm(arm, words, tuple(each.rates)))
            parts.append(Part(name, each, steps, arms, claim.seeds_of(each)))
    return parts


def is_measurement(overrides: Sequence[str]) -> bool:
    """Whether a run only calls a function of its seed: [measure.function]."""
    return len(overrides) == 1 and "=" not in overrides[0]


def needed(claim: Claim, rows: Rows, *, pilots: bool = False, long: bool = True) -> list[Run]:
    """The runs that can be made now; after them there may be more.

    Pilots try the rates, then run a few seeds at the best one. The declared test starts with ten
    seeds, and goes on to the next stage while that can decide.
    """
    found: dict[Run, None] = {}
    for part in parts_of(claim):
        if (part.prediction.long and not long) or (pilots and part.prediction.role == "shown"):
            continue
        judged = judge_part(part, rows)
        if pilots:
            count = len(PILOTS) if part.prediction.seeds is None else 1
            seeds: Sequence[int] = PILOTS[:count]
        else:
            most = FEWEST
            while judged.outcome and judged.outcome.undecided and judged.outcome.n >= most:
                most *= 2
            seeds = part.seeds[:most]
        for arm in part.arms:
            found |= dict.fromkeys(tests(arm, rows, seeds)[1])
    return list(found)


def judge_part(part: Part, rows: Rows) -> Part:
    """A prediction with the rows, scores and values of its seeds, judged."""
    prediction = part.prediction
    by_arm = {arm.name: tests(arm, rows, part.seeds)[0] for arm in part.arms}
    whole = zip(*by_arm.values(), strict=False)  # up to the first seed that some arm lacks
    read = takewhile(lambda of_seed: all(has(row, prediction.metric) for row in of_seed), whole)
    by_arm = dict(zip(by_arm, map(list, zip(*read, strict=True)), strict=False))
    worst = math.inf if prediction.metric == "val_loss" else prediction.worst
    scores = {a: [number(row, prediction.metric, worst) for row in of] for a, of in by_arm.items()}
    values = [prediction.value(of_seed) for of_seed in zip(*scores.values(), strict=True)]
    outcome = judge(values, prediction.criterion, len(part.seeds)) if values else None
    return replace(part, rows=by_arm, scores=scores, values=values, outcome=outcome)


def judge_claim(claim: Claim, rows: Rows) -> tuple[str, list[Part]]:
    """The verdict on the sentence, and every prediction at every length."""
    parts = [judge_part(part, rows) for part in parts_of(claim)]
    return sentence([(role, verdict) for _, role, verdict in verdicts(parts)]), parts


def verdicts(parts: Sequence[Part]) -> list[tuple[str, Role, str]]:
    """Name, role and verdict of each prediction; open if its lengths do not all say the same."""
    found = []
    for (name, role), of in groupby(parts, lambda part: (part.of, part.prediction.role)):
        said = {part.verdict for part in of}
        found.append((name, role, said.pop() if len(said) == 1 else "open"))
    return found


def function(folder: Path, name: str) -> Callable[..., Any]:
    """`module.function`, from a file beside claim.yaml; BadInput if there is none."""
    try:
        return resolve_name(f"{folder.parent.name}.{folder.name}.{name}")
    except (ModuleNotFoundError, AttributeError) as error:
        raise BadInput(f"{name} of {folder} cannot be imported: {error}") from error
