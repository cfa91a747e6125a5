"""A prediction at one length of training, with what its rows say."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnlab.claims.claim import Claim, Prediction
from attnlab.claims.judge import FEWEST_JUDGED, Tally, judge
from attnlab.claims.trials import (
    Arm,
    Row,
    Run,
    Tested,
    is_measurement,
    is_pilot,
    metric_of,
    read_test,
    rows_until_missing,
    without_rate,
)
from attnlab.runs.seed_statistics import LOOKS

# Units of shares, which lie between 0 and 1.
SHARE_UNITS = ("of the answers", "of the weight", "of a row's weight")


@dataclass(frozen=True)
class Finding:
    """A prediction at one length of training, with what its rows say."""

    key: str  # the prediction's key in claim.yaml
    prediction: Prediction
    steps: int | None  # None: as the claim's base says
    arms: dict[str, Arm]
    seeds: Sequence[int]
    tested: dict[str, Tested]  # arm -> what there is of its own test
    rows: dict[str, list[Row]]  # arm -> a row a seed, up to the first seed that some arm lacks
    scores: dict[str, list[float]]  # arm -> the metric, a seed each
    values: Sequence[float]  # one a seed: what is judged
    tally: Tally
    known: Sequence[Sequence[Row]] = ()  # all rows of each arm; only if the prediction is at risk

    @property
    def name(self) -> str:
        """The prediction's key, with the number of steps if it is judged at several."""
        return self.key if self.steps is None else f"{self.key}_{self.steps}"

    @property
    def verdict(self) -> str:
        """Confirmed, refuted or open; "shown" for what is not judged."""
        if self.prediction.role == "shown" or len(self.seeds) < FEWEST_JUDGED:
            return "shown"
        return self.tally.verdict

    @property
    def due(self) -> Sequence[int]:
        """The seeds that the test needs now: the first ten or, while it is open and further seeds
        could decide, twice as many as were judged."""
        if self.tally.may_change and self.tally.n >= FEWEST_JUDGED:
            return self.seeds[: 2 * self.tally.n]
        return self.seeds[:FEWEST_JUDGED]

    @property
    def is_complete(self) -> bool:
        """Whether it has a value for each seed that is due."""
        return len(self.values) >= len(self.due)

    @property
    def missing(self) -> list[Run]:
        """The runs that come next: of each arm, those that choose its learning rate or, once it is
        chosen, the seeds that are due."""
        due = self.due
        missing: dict[Run, None] = {}  # in order, each once: arms may share runs
        for of_arm in self.tested.values():
            for run in of_arm.missing:
                if is_pilot(run.seed) or run.seed in due:
                    missing[run] = None
        return list(missing)

    @property
    def arms_at_edge(self) -> list[str]:
        """The arms whose best rate is the lowest or the highest that was tried."""
        return [arm for arm, of_arm in self.tested.items() if of_arm.choice.at_edge]

    @property
    def is_decided(self) -> bool:
        """Whether its seeds decide it."""
        return self.verdict in ("confirmed", "refuted")

    @property
    def is_measured(self) -> bool:
        """Whether one of its arms is a function of measure.py instead of a training."""
        return any(is_measurement(arm.overrides) for arm in self.arms.values())

    @property
    def trained_steps(self) -> int:
        """The steps of its longest run; 0 if nothing was trained."""
        steps = [row["values"].get("steps", 0) for _, row in rows_of_findings([self])]
        return max(steps, default=0)

    @property
    def is_ended_by_callback(self) -> bool:
        """Whether a callback ended all of its runs, as where each had solved its task: then their
        numbers of steps are results. Where trainer.max_time may have ended them, they are not."""
        for arm in self.arms.values():
            if any("trainer.max_time" in word for word in arm.overrides):
                return False
        rows = [row for _, row in rows_of_findings([self])]
        return bool(rows) and all(row["status"] == "stopped" for row in rows)

    @property
    def seeds_without_room(self) -> int:
        """The number of seeds whose baseline alone, whatever the first arm did, decided that the
        sentence is false there; 0 if they are too few to have decided the verdict.

        A share lies between 0 and 1, so the first arm minus a baseline b lies between -b and
        1 - b. A refuted prediction had no room where all of that is outside its bounds, and one
        that is confirmed against the sentence where all of it is within.
        """
        prediction = self.prediction
        is_against = prediction.role == "against"
        if self.verdict != ("confirmed" if is_against else "refuted"):
            return 0
        is_of_shares = prediction.unit in SHARE_UNITS
        if not is_of_shares or not prediction.is_difference or len(self.arms) != 2:
            return 0
        n = self.tally.n
        _, baseline = self.scores.values()
        without_room = 0
        for b in baseline[:n]:
            lowest = -b
            highest = 1 - b
            if is_against:
                is_certain = prediction.above <= lowest and highest <= prediction.below
            else:
                is_certain = highest <= prediction.above or prediction.below <= lowest
            without_room += is_certain
        exceptions = n - LOOKS.get(n, n)  # so many seeds may disagree with the verdict
        return without_room if without_room > exceptions else 0


def rows_of_findings(findings: Iterable[Finding]) -> Iterator[tuple[Finding, Row]]:
    """The rows of findings, each with its finding."""
    for finding in findings:
        for of_arm in finding.rows.values():
            for row in of_arm:
                yield finding, row


def judge_prediction(
    claim: Claim, rows: Mapping[Run, Row], name: str, steps: int | None, seeds: Sequence[int]
) -> Finding:
    """Judge a prediction of a claim at one number of steps (None: as the claim's base says), by
    the given seeds up to the first that an arm lacks."""
    prediction = claim.predictions[name]
    metric = prediction.metric
    # The metric of a run that diverged: no loss is worse than that.
    worst = math.inf if metric == "val_loss" else prediction.worst
    arms = claim.arms_of(prediction, steps)
    tested = {arm: read_test(of, rows, seeds) for arm, of in arms.items()}
    rows_of = {arm: rows_until_missing(metric, of_arm.rows) for arm, of_arm in tested.items()}
    shared_seeds = min(map(len, rows_of.values()))
    rows_of = {arm: of_arm[:shared_seeds] for arm, of_arm in rows_of.items()}
    scores = {
        arm: [metric_of(row, metric, worst) for row in of_arm] for arm, of_arm in rows_of.items()
    }
    values = [prediction.value(of_seed) for of_seed in zip(*scores.values(), strict=True)]
    tally = tally_of(prediction, values, most_seeds=len(seeds))
    known = [rows_of_arm(arm, rows) for arm in arms.values()] if prediction.at_risk else ()
    return Finding(
        name, prediction, steps, arms, seeds, tested, rows_of, scores, values, tally, known
    )


def tally_of(prediction: Prediction, values: Sequence[float], most_seeds: int) -> Tally:
    """How the values of the seeds of a prediction are judged, by its thresholds."""
    return judge(
        values,
        low=prediction.above,
        high=prediction.below,
        always=prediction.always,
        most_seeds=most_seeds,
    )


def rows_of_arm(arm: Arm, rows: Mapping[Run, Row]) -> list[Row]:
    """All rows of an arm, of pilots and tests: its overrides with any seed and learning rate."""
    words = without_rate(arm.overrides)
    found = []
    for run, row in rows.items():
        if without_rate(run.overrides) == words:
            found.append(row)
    return found
