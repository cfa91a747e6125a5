"""From stored rows to judged predictions, and from those to verdicts.json."""

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.claims.claim import Claim, Measured, Prediction, RunMetric, Trained
from attnlab.claims.declare import Declared
from attnlab.claims.judge import judge, judge_claim
from attnlab.claims.plan import Plan
from attnlab.claims.results import Evidence, PredictionResult, Row
from attnlab.claims.rows import RowStore, plain


def evaluate(
    claims: Sequence[Claim],
    plan: Plan,
    store: RowStore,
    declared: Mapping[str, Declared],
    budget: str,
) -> list[Evidence]:
    """Judge claims by the rows that exist."""
    family = []
    for claim in claims:
        found = {each.name: _result(claim, each, plan, store) for each in claim.predictions}
        for result in found.values():
            judge_prediction(result, claim)
        mine = declared[claim.name]
        version, exploratory = mine.version, mine.exploratory
        family.append(Evidence(claim, budget, found, version=version, exploratory=exploratory))
        judge_claim(family[-1])
    return family


def judge_prediction(result: PredictionResult, claim: Claim) -> None:
    """Fill in scores, values and outcome from the rows.

    Only declared seeds are judged; values of further seeds are exploratory and only shown.
    """
    prediction = result.prediction
    failures = [r for rows in result.rows.values() for r in rows if r["status"] == "failed"]
    if failures:
        reason = str(failures[0]["reason"]).strip().splitlines()[-1]
        result.failed = True
        result.remark = f"{len(failures)} failed: {reason}"
        return
    if not result.seeds:
        result.remark = result.remark or "not run yet"
        return
    if isinstance(prediction, Trained):
        result.scores = {
            arm: [score(row, prediction.metric) for row in rows]
            for arm, rows in result.rows.items()
        }
        arms = [arm.name for arm in prediction.arms]
        parameters = inspect.signature(prediction.contrast).parameters.values()
        if all(p.kind is not inspect.Parameter.VAR_POSITIONAL for p in parameters):
            arms = arms[: len(parameters)]
        by_seed = zip(*(result.scores[arm] for arm in arms), strict=True)
        result.values = [float(prediction.contrast(*scores)) for scores in by_seed]
    elif isinstance(prediction, Measured):
        result.values = [_number(row["values"][prediction.value]) for row in result.rows[""]]
    declared = claim.declared_seeds(prediction)
    further = len([seed for seed in result.seeds if seed not in declared])
    if further:
        result.remark = f"{further} seeds beyond the declared ones are exploratory, not judged"
    if prediction.role != "shown":
        judged = result.values[: len(result.values) - further]
        result.outcome = judge(judged, prediction.criterion, claim.last_look)


def score(row: Row, metric: str | RunMetric) -> float:
    """The number by which a run is judged; divergence has a side and no size.

    The loss of a run that diverged is inf, so that its arm is the worse one; two arms that both
    diverged give NaN, which answers neither yes nor no.
    """
    if isinstance(metric, RunMetric):
        if row["status"] == "diverged":
            return metric.diverged
        return _number(row["values"][metric.value])
    value = _number(row["values"].get(metric))
    return value if row["status"] != "diverged" and math.isfinite(value) else math.inf


def _number(value: Any) -> float:
    """A number as `rows.plain` stores it."""
    return math.nan if value is None else float(value)


def _result(claim: Claim, prediction: Prediction, plan: Plan, store: RowStore) -> PredictionResult:
    """A prediction with its rows, up to the first seed that an arm lacks."""
    result = PredictionResult(prediction)
    unmet = plan.unmet.get((claim.name, prediction.name))
    if unmet:
        result.remark = f"precondition not met: {unmet}"
        return result
    by_seed: dict[int, dict[str, Row | None]] = {}
    for (owner, of, arm, seed), (id_, metric) in plan.rows.items():
        if (owner, of) == (claim.name, prediction.name):
            by_seed.setdefault(seed, {})[arm] = _row(owner, id_, metric, store)
    for seed, rows in by_seed.items():
        if not all(rows.values()):
            break  # seeds are used in declared order, without gaps
        result.seeds.append(seed)
        for arm, row in rows.items():
            result.rows.setdefault(arm, []).append(row or {})
    return result


def _row(claim: str, id_: str, metric: str, store: RowStore) -> Row | None:
    row = store.get(claim, id_)
    if row is None or not metric or row["status"] == "failed":
        return row
    read = store.get(claim, metric)
    if read is None or read["status"] == "failed":
        return read
    return row | {"values": row["values"] | read["values"]}


def verdict(evidence: Evidence) -> dict[str, Any]:
    """One claim's verdict, with every seed's value: the same for the same rows."""
    return {
        "says": evidence.claim.says,
        "verdict": evidence.verdict,
        "line": evidence.line,
        "version": evidence.version,
        "exploratory": evidence.exploratory,
        "predictions": {name: _json(result) for name, result in evidence.found.items()},
    }


def _json(result: PredictionResult) -> dict[str, Any]:
    prediction, outcome = result.prediction, result.outcome
    content: dict[str, Any] = {
        "says": prediction.says,
        "predicted": prediction.criterion.wording,
        "role": prediction.role,
        "timed": prediction.timed,
        **{key: vars(result)[key] for key in ("remark", "seeds", "values", "scores")},
        "verdict": result.verdict,
        "diverged": result.diverged if isinstance(prediction, Trained) else {},
        "failed": [
            {"run": row["label"], "reason": row["reason"]}
            for rows in result.rows.values()
            for row in rows
            if row["status"] == "failed"
        ],
    }
    if outcome is not None:
        names = ("n", "yes", "no", "median", "low", "high", "mean", "line")
        content |= {name: vars(outcome)[name] for name in names}
    return dict(plain(content))


def provenance(family: Sequence[Evidence]) -> dict[str, Any]:
    """Commits, versions, devices and corpora of all runs, each named once."""
    names = ("corpus", "device", "git", "precision", "versions")
    rows = all_rows(family)
    kept = {n: {json.dumps(row[n], sort_keys=True) for row in rows if n in row} for n in names}
    return {name: [json.loads(x) for x in sorted(found)] for name, found in kept.items() if found}


def all_rows(family: Sequence[Evidence]) -> list[Row]:
    """Every row that the evidence rests on."""
    return [
        row
        for evidence in family
        for result in evidence.found.values()
        for rows in result.rows.values()
        for row in rows
    ]
