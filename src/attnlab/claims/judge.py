"""From rows to verdicts: of each part, of each claim, and of the family of claims."""

import inspect
import math
from collections.abc import Sequence

from attnlab.claims.claim import Measured, Reading, Trained
from attnlab.claims.criteria import ALPHA, Verdict
from attnlab.claims.evidence import Evidence, Found, Row
from attnlab.claims.statistics import holm


def score(row: Row, metric: str | Reading) -> float:
    """The number by which a run is judged; one that diverged counts as it stood at the start.

    A diverged run is never dropped: its loss is ln V, what guessing gives, as Wortsman et al.
    (2023) do it, or what the reading says.
    """
    if isinstance(metric, Reading):
        if row["status"] == "diverged":
            start = float(row["loss_at_start"])
            return start if metric.diverged is None else metric.diverged
        return float(row["readings"][metric.value])
    value = float(row["values"][metric])
    if row["status"] == "diverged" or not math.isfinite(value):
        return float(row["loss_at_start"])
    return value


def judge_part(found: Found) -> None:
    """Fill in scores, values and outcome from the rows."""
    part = found.part
    failures = [row for row in _rows(found) if row["status"] == "failed"]
    if failures:
        reason = str(failures[0]["reason"]).strip().splitlines()[-1]
        found.failed = True
        found.remark = f"{len(failures)} failed: {reason}"
        return
    if isinstance(part, Trained):
        read = {row.get("provenance", {}).get("corpus", {}).get("name") for row in _rows(found)}
        wanted = part.given.get("corpus")
        if wanted is not None and read != {wanted}:
            found.remark = f"precondition not met: corpus = {wanted} is asked for"
            return
        found.scores = {
            arm: [score(row, part.metric) for row in rows] for arm, rows in found.rows.items()
        }
        found.values = _contrasted(part, found)
    else:
        found.values = [float(value) for value in found.each(_value_of(found))]
    if not all(math.isfinite(value) for value in found.values):
        found.failed = True
        found.remark = "a value is not finite"
        return
    found.outcome = part.test.judge(found.values)


def judge_claim(evidence: Evidence) -> None:
    """Put the parts together: every prediction that counts must hold, one that fails refutes."""
    counted = [f for f in evidence.found.values() if f.part.counts and f.outcome is not None]
    verdicts = [f.outcome.verdict for f in counted if f.outcome is not None]
    evidence.verdict = combined(verdicts)
    if evidence.failed:
        evidence.verdict = "inconclusive"
    # Repetitions of a timing are no draws from a population of seeds: they enter no family.
    untimed = [f.outcome for f in counted if f.outcome is not None and not f.part.timed]
    tested = [outcome.p for outcome in untimed if outcome.p is not None]
    evidence.p = max(tested) if tested else None  # all must hold: an intersection-union test
    _read_sentence(evidence, counted)


def judge_family(family: Sequence[Evidence]) -> None:
    """Holm's correction over the claims: what does not survive it is inconclusive."""
    adjusted = holm({e.claim.name: e.p for e in family if e.p is not None})
    for evidence in family:
        evidence.p_holm = adjusted.get(evidence.claim.name)
        if evidence.verdict == "supported" and (evidence.p_holm or 0.0) > ALPHA:
            evidence.verdict = "inconclusive"
            evidence.line += f" Not significant among {len(adjusted)} claims (Holm)."


def combined(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict from several predictions that must all hold."""
    if "refuted" in verdicts:
        return "refuted"
    if not verdicts or "inconclusive" in verdicts:
        return "inconclusive"
    return "supported"


def _rows(found: Found) -> list[Row]:
    return [row for rows in found.rows.values() for row in rows]


def _contrasted(part: Trained, found: Found) -> list[float]:
    arms = [arm.name for arm in part.arms]
    kinds = [p.kind for p in inspect.signature(part.contrast).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        arms = arms[: len(kinds)]
    by_seed = zip(*(found.scores[arm] for arm in arms), strict=True)
    return [float(part.contrast(*scores)) for scores in by_seed]


def _value_of(found: Found) -> str:
    assert isinstance(found.part, Measured)
    return found.part.value


def _read_sentence(evidence: Evidence, counted: Sequence[Found]) -> None:
    """What the parts mean for the sentence: where it holds, and where it does not."""
    holds, fails, open_ = [], [], []
    for found in counted:
        part = found.part
        assert found.outcome is not None
        if part.bearing == "neither":
            continue
        where = part.where or part.says.rstrip(".")
        if found.outcome.verdict == "inconclusive":
            open_.append(where)
        elif (found.outcome.verdict == "supported") == (part.bearing == "for"):
            holds.append(where)
        else:
            fails.append(where)
    evidence.sentence = "open"
    if holds or fails:
        evidence.sentence = "depends" if holds and fails else "holds" if holds else "fails"
    clauses = [
        f"{word} {_listed(places)}"
        for word, places in (("Holds:", holds), ("Does not hold:", fails), ("Open:", open_))
        if places
    ]
    n = sum(f.outcome is not None and f.outcome.verdict == "supported" for f in counted)
    clauses.append(f"{n} of {len(counted)} predictions came true")
    evidence.line = ". ".join(clauses) + "."


def _listed(places: Sequence[str]) -> str:
    return "; ".join(places)
