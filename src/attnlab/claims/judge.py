"""From answers to verdicts, by the rule of docs/claims.md: enough seeds must agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from attnlab.claims import statistics
from attnlab.claims.criteria import EXACT, Criterion, Exactly, Happens
from attnlab.runs.seed_statistics import (
    LOOKS,
    Answer,
    Verdict,
    count,
    declared_looks,
    median_interval,
    most_against,
)

if TYPE_CHECKING:
    from attnlab.claims.claim import Prediction
    from attnlab.claims.results import Evidence, PredictionResult


@dataclass(frozen=True)
class Outcome:
    """The result of judging one prediction by the values of its seeds."""

    verdict: Verdict
    yes: int  # how many of the judged seeds agree
    no: int  # how many contradict on one side, the one with more of them
    n: int  # judged seeds: up to the last complete look, or all if there are fewer than 10
    undecided: bool  # a later declared look could still decide
    median: float  # of the judged seeds
    low: float  # exact interval of the median
    high: float
    mean: float  # of the finite values; no verdict depends on it
    line: str  # the evidence in plain English


def decide(answers: Sequence[Answer], last_look: int, exact: bool) -> tuple[Verdict, int, bool]:
    """The verdict, the number of seeds it is based on, and whether a later look could decide.

    An `exact` criterion needs no statistics: one miss refutes, and the first 10 seeds confirm.
    """
    if exact:
        if any(answer != "yes" for answer in answers):
            return "refuted", len(answers), False
        return ("confirmed" if len(answers) >= LOOKS[0][0] else "open"), len(answers), False
    return count(answers, last_look)


def judge(values: Sequence[float], criterion: Criterion, last_look: int) -> Outcome:
    """Judge one prediction by the values of its seeds, in declared order."""
    answers = [criterion.answer(value) for value in values]
    exact = isinstance(criterion, EXACT)
    verdict, judged, undecided = decide(answers, last_look, exact)
    n = judged or len(answers)
    yes, no = answers[:n].count("yes"), most_against(answers[:n])
    ordered = [value for value in values[:n] if not math.isnan(value)]
    finite = [value for value in ordered if math.isfinite(value)]
    median, low, high = median_interval(ordered) if ordered else [math.nan] * 3
    mean = fmean(finite) if finite else math.nan
    line = f"predicted {criterion.wording}; {yes} of {n} seeds agree"
    if no and not exact:
        line += f", {no} contradict"
    if n < LOOKS[0][0] and verdict == "open":
        line += f" so far (a verdict needs {LOOKS[0][0]})"
    if ordered and not isinstance(criterion, Exactly | Happens):
        line += f"; median {median:.4g}"
        if not math.isnan(low):
            line += f" ({low:.4g} to {high:.4g})"
        line += f", mean {mean:.4g}" if finite else ""
    return Outcome(verdict, yes, no, n, undecided, median, low, high, mean, line)


def power(prediction: "Prediction", last_look: int) -> float:
    """Probability that a prediction is confirmed if its pilot was right; NaN without a pilot."""
    if prediction.pilot is None:
        return math.nan
    share = prediction.criterion.share(prediction.pilot.effect, prediction.pilot.sd)
    return statistics.reach_probability(share, declared_looks(last_look))


def judge_claim(evidence: "Evidence") -> None:
    """Derive the verdict on the sentence from the primary predictions and the controls."""
    true, false, undecided = list[str](), list[str](), list[str]()  # settings
    primary = [r for r in evidence.found.values() if r.prediction.role == "primary"]
    for result in primary:
        speaks_for = (result.verdict == "confirmed") == (result.prediction.bearing == "for")
        settings = undecided if result.verdict == "open" else true if speaks_for else false
        settings.append(_setting(result, evidence.claim.last_look))
    broken = [
        name
        for name, result in evidence.found.items()
        if result.prediction.role == "control" and result.verdict != "confirmed"
    ]
    evidence.verdict = "open"
    if broken or any(result.failed for result in primary):
        why = f"control {', '.join(broken)} not confirmed" if broken else "runs failed"
        evidence.line = f"Open: {why}."
        return
    if false:
        evidence.verdict = "holds only if" if true else "does not hold"
    elif true and not undecided:
        evidence.verdict = "holds"
    holds = {"open": "Holds so far", "holds only if": "Holds only if"}
    parts = {holds.get(evidence.verdict, "Holds"): true, "Does not hold": false, "Open": undecided}
    clauses = [f"{word}: {'; '.join(where)}" for word, where in parts.items() if where]
    # Most seeds can agree although the mean does not, so runs that diverged are named.
    clauses += [
        f"{result.prediction.name}: {count} of {len(result.rows[arm])} diverged in {arm}"
        for result in primary
        if result.verdict == "confirmed"
        for arm, count in result.diverged.items()
        if count
    ]
    evidence.line = ". ".join(clauses) + "."


def _setting(result: "PredictionResult", last_look: int) -> str:
    prediction, note = result.prediction, ""
    if result.verdict == "refuted":
        note = " (predicted otherwise)"
    elif result.verdict == "open" and not result.seeds:
        note = " (not run yet)"
    elif result.verdict == "open" and prediction.pilot is not None:
        note = f" (power {power(prediction, last_look):.0%} by its pilot)"
    return (prediction.where or prediction.says.rstrip(".")) + note
