"""A claim: a sentence and the predictions that test it, in experiments/<claim>/claim.yaml.

Committing the file declares the claim. `judged_claim` says what its rows make of it.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from attnlab.claims.declared import Declared
from attnlab.claims.judge import DECIDE, RoleOfPrediction
from attnlab.claims.trials import FIRST_PILOT, Arm, ChoosesRate, is_measurement, without_rate
from attnlab.errors import BadInput
from attnlab.installation import lab_path

PILOTS = range(FIRST_PILOT, FIRST_PILOT + 5)  # seeds of runs before the declaration
RATE_SEEDS = 3  # by default, as many of them choose a rate
CONTRASTS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "level": lambda x: x[0],
    "difference": lambda x: x[0] - x[1],  # it is paired: same weights, same batches
    "interaction": lambda x: x[0] - x[1] - x[2] + x[3],
}
# What a prediction needs neither two lengths, nor the best rates, nor two processors for: it is
# about equal numbers, about what is read, about what can be, or names its steps itself.
Exempt = Literal["", "exact", "leak", "impossible", "budget"]
MAY_CHANGE = ("says", "where", "long", "at_risk", "exempt")  # of a prediction, after its runs
LARGEST_RATIO = 3.4  # of neighboring rates: sqrt(10), rounded as in 0.3, 1, 3


class Size(BaseModel, extra="forbid", frozen=True):
    """One size of a ladder, which trains both arms of a prediction."""

    overrides: tuple[str, ...]
    parameters: int  # of the first arm
    rates: tuple[float, ...] = ()  # instead of the prediction's


class Prediction(BaseModel, extra="forbid", frozen=True):
    """One prediction. Its value for a seed is a contrast of the metric of its arms."""

    says: str
    arms: tuple[str, ...]
    above: float = -math.inf
    below: float = math.inf
    always: bool = False  # no statistics: a single miss refutes
    unit: str = "nats"
    role: RoleOfPrediction = "for"
    where: str = ""  # the setting in the author's words, as it follows "True:" or "False:"
    metric: str = "val_loss"  # a key of the row's values: of metrics.json, or of `read`
    read: str = ""  # measure.function: further values, from the directory of a finished run
    worst: float = math.nan  # the metric of a run that diverged
    contrast: Literal["", "level", "min", "max", "interaction"] = ""  # "": see `value`
    weights: tuple[float, ...] = ()  # one an arm: the contrast is the weighted sum
    # A ladder: the value of a seed is the slope of the difference over log10(parameters).
    sizes: Mapping[str, Size] = Field(default_factory=dict)
    rates: tuple[float, ...] = ()  # ascending, a factor of sqrt(10) apart at most
    rate_by: ChoosesRate = "val_loss"  # a pilot's value: the lowest loss, the highest accuracy
    # pilots that choose among them
    rate_seeds: int = Field(default=RATE_SEEDS, ge=1, le=len(PILOTS))
    lengths: tuple[int, ...] = ()  # numbers of steps, such as n and 4 n; it must hold at each
    first_seed: int | None = None  # instead of the claim's, for a prediction that was added later
    seeds: int | None = None  # fewer, for roles that do not decide
    long: bool = False  # only run with --long
    at_risk: bool = False  # declared before any run of one of its arms, which git must show
    exempt: Exempt = ""  # why its verdict reaches beyond its steps, rates and processor

    @property
    def steps(self) -> Sequence[int | None]:
        """The numbers of steps at which it is judged; [None] if it is judged once, after as many
        steps as the claim's base says."""
        return self.lengths or [None]

    @property
    def is_needed(self) -> bool:
        """Whether the sentence has a verdict only with it: it decides, or is a control."""
        return self.role in (*DECIDE, "control")

    @property
    def is_difference(self) -> bool:
        """Whether its value is a difference between arms, and not the level of one arm, or the
        lowest or highest of several."""
        if self.weights or self.contrast == "interaction":
            return True
        return not self.contrast and len(self.arms) > 1

    @model_validator(mode="after")
    def _check(self) -> "Prediction":
        """Refuse settings that do not go together, with ValueError."""
        if math.isinf(self.above) and math.isinf(self.below):
            raise ValueError("a prediction needs above or below, or both")
        if self.weights and (self.contrast or len(self.weights) != len(self.arms)):
            raise ValueError("weights are one number for each arm, instead of a contrast")
        if self.seeds is not None and self.role in ("for", "against", "control"):
            raise ValueError(f"a prediction with the role {self.role} uses all seeds of its claim")
        if self.sizes and (len(self.arms) != 2 or self.weights or self.contrast):
            raise ValueError("sizes are those of two arms, without weights or a contrast")
        if len({size.parameters for size in self.sizes.values()}) == 1:
            raise ValueError("a slope needs two sizes")
        for rates in (self.rates, *(size.rates for size in self.sizes.values())):
            ratios = [b / a for a, b in pairwise(rates)]  # none if there is one rate: no choice
            if rates and not (ratios and all(1 < x <= LARGEST_RATIO for x in ratios)):
                raise ValueError(f"{rates} must be rates that ascend by at most sqrt(10) each")
        return self

    def differences(self, scores: Sequence[float]) -> list[float]:
        """The first arm minus the second at each size of a ladder. `scores` has the metric of both
        arms at the first size, then at the second one, and so on."""
        return [a - b for a, b in zip(scores[::2], scores[1::2], strict=True)]

    def value(self, scores: Sequence[float]) -> float:
        """What is judged of a seed, from the metric of each arm: the slope of a ladder, a weighted
        sum, or a contrast; by default, the difference of the first two arms, or the level of
        one."""
        if self.sizes:
            log_parameters = [math.log10(size.parameters) for size in self.sizes.values()]
            return linear_regression(log_parameters, self.differences(scores)).slope
        if self.weights:
            return sum(w * x for w, x in zip(self.weights, scores, strict=False))
        default = "difference" if len(scores) > 1 else "level"
        return CONTRASTS[self.contrast or default](scores)


class Claim(Declared, frozen=True):
    """A sentence with its predictions, the most important one first."""

    says: str
    order: int = 100  # its place in the table of all claims
    otherwise: str = ""  # what was shown if it does not hold, such as "no effect above 0.03 nats"
    withdrawn: str = ""  # why its rows do not decide the sentence; until it is tested anew
    exempt: Exempt = ""  # of all its predictions
    # Another claim, or the ranking -> why its rows of the same arms say otherwise.
    differs: Mapping[str, str] = Field(default_factory=dict)
    planned_hours: float | None = None  # CPU hours of its test and its pilots, as planned
    base: tuple[str, ...]  # Hydra overrides that all arms share, such as experiment=unscaled
    first_seed: int
    most_seeds: Literal[10, 20, 40] = 10
    arms: dict[str, tuple[str, ...]]  # overrides; or [measure.function], without training
    predictions: dict[str, Prediction]

    @model_validator(mode="after")
    def _check(self) -> "Claim":
        """Refuse predictions of unknown arms, and test seeds that are those of pilots, with
        ValueError."""
        for name, prediction in self.predictions.items():
            if unknown := set(prediction.arms) - set(self.arms):
                raise ValueError(f"{name} names no arm: {', '.join(sorted(unknown))}")
            if self.seeds_of(prediction).stop > FIRST_PILOT:
                raise ValueError(
                    f"{name} is tested by seeds up to {self.seeds_of(prediction).stop - 1}; those "
                    f"from {FIRST_PILOT} on are of pilots: choose a lower first_seed"
                )
        return self

    def seeds_of(self, prediction: Prediction) -> range:
        """The seeds that test a prediction."""
        first = self.first_seed if prediction.first_seed is None else prediction.first_seed
        return range(first, first + (prediction.seeds or self.most_seeds))

    def pilots_of(self, prediction: Prediction) -> range:
        """The seeds by which a prediction is tried out before it is declared. One is enough for a
        prediction with its own number of seeds: it never decides the verdict on the sentence."""
        return PILOTS[:1] if prediction.seeds else PILOTS

    def arms_of(self, prediction: Prediction, steps: int | None) -> dict[str, Arm]:
        """The arms of a prediction by name, trained for so many steps; None: as the base says."""
        words_of_steps: tuple[str, ...] = ()
        if steps:
            words_of_steps = (f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}")
        arms = {}
        for name, (own, rates) in overrides_and_rates(prediction, self.arms).items():
            # A measurement only calls a function of its seed: nothing is trained.
            words = own if is_measurement(own) else (*self.base, *own, *words_of_steps)
            pilots = PILOTS[: prediction.rate_seeds]
            arms[name] = Arm(words, rates, pilots, chosen_by=prediction.rate_by)
        return arms


def overrides_and_rates(
    prediction: Prediction, arms: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[tuple[str, ...], tuple[float, ...]]]:
    """The overrides and the learning rates of the arms of a prediction, by name. A ladder has both
    arms once for each size, as "name, size". `arms` has the overrides of the claim's arms."""
    if not prediction.sizes:
        return {name: (arms[name], prediction.rates) for name in prediction.arms}
    found = {}
    for size_name, size in prediction.sizes.items():
        for name in prediction.arms:
            words = (*arms[name], *size.overrides)
            found[f"{name}, {size_name}"] = (words, size.rates or prediction.rates)
    return found


def declaration_of(content: Any, name: str) -> Any:
    """What the content of a claim.yaml declares of a prediction, to be compared with what it
    declared when the runs were made: all but what may change after them. None if it has no such
    prediction."""
    entry = content["predictions"].get(name)
    if entry is None:
        return None
    # The first seed is the prediction's or the claim's: where it is written may change.
    first_seed = entry.get("first_seed", content["first_seed"])
    declared = {key: x for key, x in entry.items() if key not in (*MAY_CHANGE, "first_seed")}
    declared["arms"] = [content["arms"][arm] for arm in entry["arms"]]  # an arm may be renamed
    declared["base"] = content["base"]
    declared["first and most seeds"] = (first_seed, content.get("most_seeds", 10))
    return declared


def find_claims(names: Sequence[str]) -> list[Claim]:
    """The claims with these names, or in these directories. A name is looked for in ./experiments
    and then in the lab. Without names: all claims of ./experiments in order or, if it has none,
    all of the lab. Modules beside them can be imported from then on. BadInput if a name has no
    claim."""
    own = claim_files(Path("experiments"))
    known = claim_files(lab_path("experiments")) | own
    files = []
    for name in names:
        file = Path(name, "claim.yaml")
        if not file.exists():
            file = known.get(name.rstrip("/"), file)
        if not file.exists():
            raise BadInput(f"there is no claim {name}; known are: {', '.join(sorted(known))}")
        files.append(file)
    if names:
        claims = [Claim.read(file) for file in files]
    else:
        claims = [Claim.read(file) for file in (own or known).values()]
        claims.sort(key=lambda claim: (claim.order, claim.folder))
    make_importable(claims)
    return claims


def claim_files(experiments: Path) -> dict[str, Path]:
    """The claim.yaml of each claim in a directory, by the name of the claim."""
    return {file.parent.name: file for file in experiments.glob("*/claim.yaml")}


def make_importable(claims: Sequence[Claim]) -> None:
    """Let `experiments.NAME.module` be imported: add the directories above `experiments` to
    sys.path."""
    for claim in claims:
        parent = str(claim.folder.parents[1])
        if parent not in sys.path:
            sys.path.append(parent)


def functions_by_arm(claim: Claim) -> dict[tuple[str, ...], list[str]]:
    """The names of the functions that read finished runs of each arm, by the arm's overrides
    without the learning rate: those of all predictions, as several may use one arm."""
    functions: dict[tuple[str, ...], list[str]] = {}
    for prediction in claim.predictions.values():
        for steps in prediction.steps:
            for arm in claim.arms_of(prediction, steps).values():
                of_arm = functions.setdefault(without_rate(arm.overrides), [])
                if prediction.read and prediction.read not in of_arm:
                    of_arm.append(prediction.read)
    return functions
