"""A claim: a sentence and the predictions that test it, in experiments/<claim>/claim.yaml.

Committing the file declares the claim: `declared.undeclared` compares the predictions at the
commits that rows name with today's.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from attnlab.claims.declared import Declared, undeclared
from attnlab.claims.judge import FEWEST_JUDGED, Bearing, Outcome, judge, verdict_on_sentence
from attnlab.claims.rows import Rows, open_rows
from attnlab.claims.trials import (
    Arm,
    Row,
    Run,
    is_measurement,
    metric_of,
    read_test,
    rows_with,
    without_rate,
)
from attnlab.claims.work import Work
from attnlab.errors import BadInput
from attnlab.installation import lab_path

PILOTS = range(1000, 1005)  # seeds of runs before the declaration; the first three choose rates
CONTRASTS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "level": lambda x: x[0],
    "difference": lambda x: x[0] - x[1],  # it is paired: same weights, same batches
    "interaction": lambda x: x[0] - x[1] - x[2] + x[3],
}
WORDS = ("says", "where", "long")  # of a prediction: they may change after its runs


class Prediction(BaseModel, extra="forbid", frozen=True):
    """One prediction. Its value for a seed is a contrast of the metric of its arms."""

    says: str
    arms: tuple[str, ...]
    above: float = -math.inf
    below: float = math.inf
    always: bool = False  # no statistics: a single miss refutes
    unit: str = "nats"
    role: Bearing = "for"
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
        for name, prediction in self.predictions.items():
            if unknown := set(prediction.arms) - set(self.arms):
                raise ValueError(f"{name} names no arm: {', '.join(sorted(unknown))}")
            if not set(self.seeds_of(prediction)).isdisjoint(PILOTS):
                raise ValueError("seeds from 1000 on are those of pilots")
        return self

    def seeds_of(self, prediction: Prediction) -> range:
        """The seeds that test a prediction."""
        first = self.first_seed if prediction.first_seed is None else prediction.first_seed
        return range(first, first + (prediction.seeds or self.most_seeds))

    def arms_of(self, prediction: Prediction, steps: int | None) -> dict[str, Arm]:
        """The arms of a prediction by name, at one of its lengths; None: as the base says."""
        end = (f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}")
        arms = {}
        for name in prediction.arms:
            own = self.arms[name]
            words = own if is_measurement(own) else (*self.base, *own)
            if steps and not is_measurement(own):
                words += end
            arms[name] = Arm(words, prediction.rates)
        return arms


@dataclass(frozen=True)
class Finding:
    """A prediction at one length of training, with what its rows say."""

    of: str  # the prediction's key in claim.yaml
    prediction: Prediction
    steps: int | None  # None: as the claim's base says
    arms: dict[str, Arm]
    seeds: Sequence[int]
    rows: dict[str, list[Row]]  # arm -> a row a seed, up to the first seed that some arm lacks
    scores: dict[str, list[float]]  # arm -> the metric, a seed each
    values: Sequence[float]  # one a seed: what is judged
    outcome: Outcome

    @property
    def name(self) -> str:
        """The prediction's name, and its length if it has several."""
        return self.of if self.steps is None else f"{self.of}_{self.steps}"

    @property
    def verdict(self) -> str:
        """Confirmed, refuted or open; "shown" for what is not judged."""
        if self.prediction.role == "shown" or len(self.seeds) < FEWEST_JUDGED:
            return "shown"
        return self.outcome.verdict


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the verdict on its sentence, and a finding a prediction and length."""

    claim: Claim
    findings: Sequence[Finding]

    @property
    def verdict(self) -> str:
        """The verdict on the sentence."""
        return verdict_on_sentence([(p.role, verdict) for p, verdict in self.predictions()])

    def predictions(self) -> list[tuple[Prediction, str]]:
        """Each prediction with its verdict: open if its lengths do not all say the same."""
        found = []
        for _, group in groupby(self.findings, lambda finding: finding.of):
            of_lengths = list(group)
            verdicts = {finding.verdict for finding in of_lengths}
            verdict = verdicts.pop() if len(verdicts) == 1 else "open"
            found.append((of_lengths[0].prediction, verdict))
        return found

    def test_rows(self) -> Iterator[tuple[Finding, Row]]:
        """Every row of the test; one that several predictions read, once for each."""
        for finding in self.findings:
            for of_arm in finding.rows.values():
                for row in of_arm:
                    yield finding, row

    def exploratory(self) -> str:
        """Why its rows are not a declared test, in a sentence; empty if they are."""
        made = {(row["commit"], (finding.of,)) for finding, row in self.test_rows()}
        return undeclared(self.claim.file, made, declaration_of)


def judge_claim(claim: Claim, rows: Mapping[Run, Row], seeds: Sequence[int] = ()) -> JudgedClaim:
    """Judge the predictions of a claim at each of their lengths, by the rows of their seeds, or of
    others, such as those of pilots."""
    findings = []
    for name, prediction in claim.predictions.items():
        for steps in prediction.lengths or (None,):
            of_seeds = seeds or claim.seeds_of(prediction)
            findings.append(judge_prediction(claim, rows, name, steps, of_seeds))
    return JudgedClaim(claim, findings)


def judge_prediction(
    claim: Claim, rows: Mapping[Run, Row], name: str, steps: int | None, seeds: Sequence[int]
) -> Finding:
    """Judge one prediction at one length, by the seeds that all its arms have."""
    prediction = claim.predictions[name]
    metric = prediction.metric
    worst = math.inf if metric == "val_loss" else prediction.worst
    arms = claim.arms_of(prediction, steps)
    rows_of = {arm: rows_with(metric, read_test(of, rows, seeds)[0]) for arm, of in arms.items()}
    complete = min(map(len, rows_of.values()))
    rows_of = {arm: of_arm[:complete] for arm, of_arm in rows_of.items()}
    scores = {
        arm: [metric_of(row, metric, worst) for row in of_arm] for arm, of_arm in rows_of.items()
    }
    values = [prediction.value(of_seed) for of_seed in zip(*scores.values(), strict=True)]
    outcome = judge(values, prediction.above, prediction.below, prediction.always, len(seeds))
    return Finding(name, prediction, steps, arms, seeds, rows_of, scores, values, outcome)


def missing_runs(
    claim: Claim, rows: Mapping[Run, Row], *, pilots: bool = False, long: bool = True
) -> list[Run]:
    """The runs that can be made now; after them there may be more.

    Pilots try the rates, then run a few seeds at the best one. The declared test starts with ten
    seeds, and goes on to the next stage while that can decide.
    """
    missing: dict[Run, None] = {}  # in order, each once
    for finding in judge_claim(claim, rows).findings:
        prediction = finding.prediction
        if (prediction.long and not long) or (pilots and prediction.role == "shown"):
            continue
        seeds = pilot_seeds(prediction) if pilots else next_seeds(finding)
        for arm in finding.arms.values():
            missing |= dict.fromkeys(read_test(arm, rows, seeds)[1])
    return list(missing)


def pilot_seeds(prediction: Prediction) -> Sequence[int]:
    """The seeds that show an effect before the declaration: one, for what is not judged."""
    return PILOTS[:1] if prediction.seeds else PILOTS


def next_seeds(finding: Finding) -> Sequence[int]:
    """The seeds of the test up to the stage that is due: ten, and then twice as many."""
    outcome = finding.outcome
    if outcome.undecided and outcome.n >= FEWEST_JUDGED:
        return finding.seeds[: 2 * outcome.n]
    return finding.seeds[:FEWEST_JUDGED]


def declaration_of(content: Any, name: str) -> Any:
    """What a claim.yaml declares of a prediction: all but its words; None if it does not."""
    entry = content["predictions"].get(name)
    if entry is None:
        return None
    first = entry.get("first_seed", content["first_seed"])
    return {key: x for key, x in entry.items() if key not in WORDS} | {
        "arms": [content["arms"][arm] for arm in entry["arms"]],
        "base": content["base"],
        "first_seed": (first, content.get("most_seeds", 10)),
    }


def find_claims(names: Sequence[str]) -> list[Claim]:
    """The claims of names or directories, in ./experiments before those of the lab; without names
    all of them in order. Their modules can be imported. BadInput if there is none."""
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
    """The claims of a directory by name."""
    return {file.parent.name: file for file in experiments.glob("*/claim.yaml")}


def make_importable(claims: Sequence[Claim]) -> None:
    """Let `experiments.NAME.module` be imported from where the claims are."""
    for claim in claims:
        parent = str(claim.folder.parents[1])
        if parent not in sys.path:
            sys.path.append(parent)


def open_claim(
    claim: Claim, outputs: Path, *, pilots: bool = False, long: bool = False, fresh: bool = False
) -> Work:
    """What `attnlab reproduce` does for a claim. With `fresh`, committed rows choose the learning
    rates, and the test is run again."""
    outputs = outputs.resolve() / claim.folder.name
    rows, commit = open_rows(claim.folder, outputs / "rows.jsonl")
    if fresh:
        committed = Rows(claim.folder / "rows.jsonl")
        rows = Rows(outputs / "fresh.jsonl")
        rows |= {run: row for run, row in committed.items() if run.seed >= PILOTS[0]}
    return Work(
        folder=claim.folder,
        outputs=outputs,
        rows=rows,
        commit=commit,
        missing=partial(missing_runs, claim, rows, pilots=pilots, long=long),
        reads=functions_by_arm(claim),
    )


def functions_by_arm(claim: Claim) -> dict[tuple[str, ...], list[str]]:
    """The functions that read a run, by its overrides without the learning rate."""
    reads: dict[tuple[str, ...], list[str]] = {}
    for prediction in claim.predictions.values():
        for steps in prediction.lengths or (None,):
            for arm in claim.arms_of(prediction, steps).values():
                of_arm = reads.setdefault(without_rate(arm.overrides), [])
                if prediction.read and prediction.read not in of_arm:
                    of_arm.append(prediction.read)
    return reads
