"""Judges predictions and claims, and says in words what was measured."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from attnlab.claims import statistics
from attnlab.claims.criteria import EXACT, Criterion, Exactly, Happens
from attnlab.claims.rule import decide, decide_lengths, decide_sentence
from attnlab.files import read_json
from attnlab.runs.seed_statistics import (
    LOOKS,
    Verdict,
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
        of = f"of the {len(finite)} finite values " if len(finite) < len(ordered) else ""
        line += f", mean {of}{mean:.4g}" if finite else ""
    return Outcome(verdict, yes, no, n, undecided, median, low, high, mean, line)


def power(prediction: "Prediction", last_look: int) -> float:
    """Probability that a prediction is confirmed if its pilot was right; NaN without a pilot."""
    if prediction.pilot is None:
        return math.nan
    share = prediction.criterion.share(prediction.pilot.effect, prediction.pilot.sd)
    return statistics.reach_probability(share, declared_looks(last_look))


def false_confirmations(declarations: Iterable[Mapping[str, Any]]) -> tuple[int, float]:
    """How many primary predictions need statistics, and P(any is confirmed falsely), at most.

    Takes the declarations of all claims, as declared.json holds them. Falsely: although at most
    half of all seeds agree. The lengths of one prediction count once.
    """
    errors = {}
    for number, content in enumerate(declarations):
        looks = [(int(n), int(bar)) for n, bar in content["looks"]]
        for name, prediction in content["predictions"].items():
            exact = prediction["criterion"]["kind"] in [kind.__name__ for kind in EXACT]
            if prediction["role"] == "primary" and not exact:
                key = number, prediction.get("part_of") or name
                errors[key] = statistics.reach_probability(0.5, looks)
    return len(errors), sum(errors.values())


def family_error(experiments: Path) -> str:
    """The error over all declared claims of a directory, in a sentence."""
    declared = [read_json(file) for file in sorted(experiments.glob("*/declared.json"))]
    count, error = false_confirmations(content["declaration"] for content in declared)
    return (
        f"{count} declared primary predictions: if at most half of all seeds agree with each, at "
        f"least one is confirmed with a probability of at most {error:.1%}"
    )


def judge_claim(evidence: "Evidence") -> None:
    """Derive the verdict on the sentence from the primary predictions and the controls."""
    true, false, undecided = list[str](), list[str](), list[str]()  # settings
    primary = [r for r in evidence.found.values() if r.prediction.role == "primary"]
    for parts in _predictions(primary):
        verdict = decide_lengths([x.outcome.verdict if x.outcome else "open" for x in parts])
        speaks_for = (verdict == "confirmed") == (parts[0].prediction.bearing == "for")
        settings = undecided if verdict == "open" else true if speaks_for else false
        settings.append(_setting(parts, verdict, evidence.claim.last_look))
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
    if not primary:
        evidence.line = "Open: the times are shown, not judged."
        return
    evidence.verdict = decide_sentence(len(true), len(false), len(undecided))
    holds = {"open": "Holds so far", "holds only if": "Holds only if"}
    parts_of_line = {holds.get(evidence.verdict, "Holds"): true}
    parts_of_line |= {"Does not hold": false, "Open": undecided}
    clauses = [f"{word}: {'; '.join(where)}" for word, where in parts_of_line.items() if where]
    # Most seeds can agree although the mean does not, so runs that diverged are named.
    clauses += [
        f"{result.prediction.name}: {count} of {len(result.rows[arm])} diverged in {arm}"
        for result in primary
        if result.verdict == "confirmed"
        for arm, count in result.diverged.items()
        if count
    ]
    evidence.line = ". ".join(clauses) + "."


def _predictions(results: Sequence["PredictionResult"]) -> list[list["PredictionResult"]]:
    """The results of each prediction, one for each of its lengths."""
    groups: dict[str, list[PredictionResult]] = {}
    for result in results:
        name = result.prediction.part_of or result.prediction.name
        groups.setdefault(name, []).append(result)
    return list(groups.values())


def _setting(parts: Sequence["PredictionResult"], verdict: Verdict, last_look: int) -> str:
    prediction, notes = parts[0].prediction, []
    if verdict == "refuted":
        notes.append("predicted otherwise")
    elif verdict == "open" and not any(part.seeds for part in parts):
        notes.append("not run yet")
    elif len({part.verdict for part in parts}) > 1:
        notes += [f"{part.verdict} at {part.prediction.steps:,} steps" for part in parts]
    elif verdict == "open" and prediction.pilot is not None:
        notes.append(f"power {power(prediction, last_look):.0%} by its pilot")
    for part in parts:
        for arm, choice in part.prediction.chosen.items():
            if choice.at_edge:
                notes.append(f"the best rate of {arm} is at the edge of those tried")
    where = prediction.where or prediction.says.rstrip(".")
    return f"{where} ({', '.join(notes)})" if notes else where
