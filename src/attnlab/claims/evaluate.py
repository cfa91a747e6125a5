"""From stored rows to judged predictions, and from those to verdicts.json."""

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.claims.claim import Claim, Measured, Prediction, Trained
from attnlab.claims.conditions import describe_conditions
from attnlab.claims.judge import judge, judge_claim
from attnlab.claims.plan import ClaimSet, ClaimTask, Counts, tasks_of, unmet
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.claims.rows import Row, RowStore, number_of, plain, read_published, score


def evaluate(known: ClaimSet, counts: Counts) -> list[Evidence]:
    """Judge claims by all existing rows of their declared seeds, and of more if `counts` says so.

    Hydra's directory must be open. Raises BadInput if a row lacks a number that is judged.
    """
    family = []
    for claim in known.claims:
        found = {each.name: _result(known, claim, each, counts) for each in claim.predictions}
        for result in found.values():
            judge_prediction(result, claim)
        mine = known.declared[claim.name]
        family.append(Evidence(claim, found, version=mine.version, exploratory=mine.exploratory))
        if not mine.exploratory and any(_has_exploratory_rows(x, claim) for x in found.values()):
            rows = known.paths.own_rows(claim.name)
            family[-1].exploratory = f"{rows} has rows of exploratory runs; use new --outputs"
        judge_claim(family[-1])
        family[-1].tested = describe_conditions(claim, found, known.resolve)
        family[-1].rows = known.store.committed(claim.name)
        published = read_published(known.paths.experiments / claim.name)
        family[-1].exploratory = family[-1].exploratory or _judged_otherwise(family[-1], published)
    return family


def _judged_otherwise(evidence: Evidence, published: Mapping[str, Any]) -> str:
    """What is different in the published verdict on the same rows, in a sentence; empty if there
    is none, or nothing is different. Then the code that judges was changed after the runs."""
    digests = {id_: row["digest"] for id_, row in evidence.rows.items()}
    if (published.get("version"), published.get("rows")) != (evidence.version, digests):
        return ""
    verdicts: dict[str, str] = {"the claim": evidence.verdict}
    verdicts |= {name: result.verdict for name, result in evidence.found.items()}
    then = {"the claim": published["verdict"]}
    then |= {name: x["verdict"] for name, x in published["predictions"].items()}
    for name, word in verdicts.items():
        if word != then.get(name, word):
            return f"{name} is {word} by today's code, and {then[name]} in verdict.json"
    for name, result in evidence.found.items():
        values = published["predictions"].get(name, {}).get("values", [])
        pairs = zip(plain(result.values), values, strict=False)
        if changed := [(a, b) for a, b in pairs if not _close(a, b)]:
            a, b = changed[0]
            return f"{name} is {a} at a seed by today's code, and {b} in verdict.json"
    return ""


def _close(a: Any, b: Any) -> bool:
    """Equal but for rounding on another processor; values that are not finite are no numbers."""
    both = isinstance(a, float) and isinstance(b, float)
    return bool(a == b or (both and math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)))


def _has_exploratory_rows(result: PredictionResult, claim: Claim) -> bool:
    """Whether a declared seed has a row that is not part of the declared test."""
    count = len(claim.declared_seeds(result.prediction))
    rows = [row for of_arm in result.rows.values() for row in of_arm[:count]]
    return any(row.get("declared") is False for row in rows)


def judge_prediction(result: PredictionResult, claim: Claim) -> None:
    """Fill in scores, values and outcome from the rows; BadInput if a row lacks the number.

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
        takes = inspect.getfullargspec(prediction.contrast)
        arms = prediction.arms[: None if takes.varargs else len(takes.args)]
        by_seed = zip(*(result.scores[arm.name] for arm in arms), strict=True)
        result.values = [float(prediction.contrast(*scores)) for scores in by_seed]
    elif isinstance(prediction, Measured):
        result.values = [number_of(row, prediction.value) for row in result.rows[""]]
    declared = claim.declared_seeds(prediction)
    if further := len([seed for seed in result.seeds if seed not in declared]):
        result.remark = f"{further} seeds beyond the declared ones are exploratory, not judged"
    if prediction.role != "shown":
        judged = result.values[: len(result.values) - further]
        result.outcome = judge(judged, prediction.criterion, claim.last_look)


def _result(
    known: ClaimSet, claim: Claim, prediction: Prediction, counts: Counts
) -> PredictionResult:
    """A prediction with its rows, up to the first seed for which an arm has no row."""
    result = PredictionResult(prediction)
    if isinstance(prediction, Trained) and (reason := unmet(known, claim, prediction)):
        result.remark = f"precondition not met: {reason}"
        return result
    declared = len(claim.declared_seeds(prediction))
    count = max(declared, counts.get((claim.name, prediction.name), 0))
    for seed in range(claim.first_seed, claim.first_seed + count):
        tasks = tasks_of(known, claim, prediction, seed)
        rows = {arm: _row(claim.name, task, known.store) for arm, task in tasks.items()}
        if not all(rows.values()):
            break  # seeds count in declared order, without gaps
        result.seeds.append(seed)
        for arm, row in rows.items():
            result.rows.setdefault(arm, []).append(row or {})
    return result


def _row(claim: str, task: ClaimTask, store: RowStore) -> Row | None:
    row = store.get(claim, task.id)
    if row is None or not task.metrics or row["status"] == "failed":
        return row
    read = store.get(claim, next(iter(task.metrics)))
    if read is None or read["status"] == "failed":
        return read
    return read | row | {"values": row["values"] | read["values"]}


def verdict(evidence: Evidence) -> dict[str, Any]:
    """A claim's verdict with the value of every seed, as JSON; the same for the same rows."""
    keys = ("verdict", "line", "tested", "version", "exploratory")
    content = {key: vars(evidence)[key] for key in keys}
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
    elif result.values:
        content |= dict(zip(("median", "low", "high"), result.interval, strict=True))
    return dict(plain(content))


def provenance(family: Sequence[Evidence]) -> dict[str, Any]:
    """Commits, versions, devices, precisions and corpora of all runs, each once."""
    names = ("corpus", "device", "git", "precision", "processor", "versions")
    rows = [row for each in family for result in each.found.values() for row in result.all_rows]
    kept = {n: {json.dumps(row[n], sort_keys=True) for row in rows if n in row} for n in names}
    return {name: [json.loads(x) for x in sorted(found)] for name, found in kept.items() if found}
