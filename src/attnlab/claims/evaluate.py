"""From stored rows to judged predictions, and from those to verdicts.json."""

import inspect
import json
import math
from collections.abc import Sequence
from typing import Any

from attnlab.claims.claim import Claim, Measured, Prediction, RunMetric, Trained
from attnlab.claims.judge import judge, judge_claim
from attnlab.claims.plan import ClaimSet, Counts, Plan, make_plan
from attnlab.claims.results import Evidence, PredictionResult, Row, RowStore, plain


def evaluate(known: ClaimSet, counts: Counts | None = None) -> list[Evidence]:
    """Judge claims by the rows that exist, whichever budget ran them.

    Looks at all declared seeds, and at further ones where `counts` asks for them; Hydra's
    directory must be open.
    """
    everything = {
        (key := (claim.name, each.name)): max(
            (counts or {}).get(key, 0), len(claim.declared_seeds(each))
        )
        for claim, each in known.predictions
    }
    plan = make_plan(known, everything)
    family = []
    for claim in known.claims:
        found = {each.name: _result(claim, each, plan, known.store) for each in claim.predictions}
        for result in found.values():
            judge_prediction(result, claim)
        mine = known.declared[claim.name]
        family.append(Evidence(claim, found, version=mine.version, exploratory=mine.exploratory))
        judge_claim(family[-1])
    return family


def judge_prediction(result: PredictionResult, claim: Claim) -> None:
    """Fill in scores, values and outcome from the rows.

    Only declared seeds are judged; values of further seeds are exploratory and only shown.
    """
    prediction = result.prediction
    if result.failed:
        reason = str(result.failed[0]["reason"]).strip().splitlines()[-1]
        result.remark = f"{len(result.failed)} failed: {reason}"
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
    if unmet := plan.unmet.get((claim.name, prediction.name)):
        result.remark = f"precondition not met: {unmet}"
    for seed, ids in plan.rows[claim.name, prediction.name].items():
        rows = {arm: _row(claim.name, *of_arm, store) for arm, of_arm in ids.items()}
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
    content = {
        name: vars(evidence)[name] for name in ("verdict", "line", "version", "exploratory")
    }
    predictions = {name: _json(result) for name, result in evidence.found.items()}
    return {"says": evidence.claim.says, **content, "predictions": predictions}


def _json(result: PredictionResult) -> dict[str, Any]:
    prediction = result.prediction
    content: dict[str, Any] = {
        "says": prediction.says,
        "predicted": prediction.criterion.wording,
        "role": prediction.role,
        "timed": prediction.timed,
        **{key: vars(result)[key] for key in ("remark", "seeds", "values", "scores")},
        "verdict": result.verdict,
        "diverged": result.diverged if isinstance(prediction, Trained) else {},
        "failed": [{"run": row["label"], "reason": row["reason"]} for row in result.failed],
    }
    if result.outcome is not None:
        apart = ("verdict", "undecided")
        content |= {key: x for key, x in vars(result.outcome).items() if key not in apart}
    return dict(plain(content))


def provenance(family: Sequence[Evidence]) -> dict[str, Any]:
    """Commits, versions, devices and corpora of all runs, each named once."""
    names = ("corpus", "device", "git", "precision", "versions")
    rows = [row for each in family for result in each.found.values() for row in result.all_rows]
    kept = {n: {json.dumps(row[n], sort_keys=True) for row in rows if n in row} for n in names}
    return {name: [json.loads(x) for x in sorted(found)] for name, found in kept.items() if found}
