"""From stored rows to evidence, and from evidence to verdicts.json."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from attnlab.claims.claim import Claim, Measured, Trained, declaration, declared_hash
from attnlab.claims.evidence import Evidence, Found, Row
from attnlab.claims.judge import judge_claim, judge_family, judge_part
from attnlab.claims.paths import Places
from attnlab.claims.plan import Plan
from attnlab.files import read_json, write_json
from attnlab.training.run_directory import now


def declare(claim: Claim, plan: Plan, places: Places) -> None:
    """Keep what a claim predicts before its first run; afterwards it stays as it was."""
    file = places.declared(claim.name)
    ids = {ids for (name, *_), ids in plan.rows.items() if name == claim.name}
    begun = any(places.row(id_).exists() for pair in ids for id_ in pair if id_)
    if not file.exists() or (not begun and _kept(claim, places) != declared_hash(claim)):
        content = {"hash": declared_hash(claim), "time": now()} | declaration(claim)
        write_json(file, content)


def gather(claims: Sequence[Claim], plan: Plan, places: Places) -> list[Evidence]:
    """Evidence of every claim whose rows are all there, judged as one family."""
    family = []
    for claim in claims:
        found = {part.name: _found(claim, part.name, plan, places) for part in claim.parts}
        if any(part is None for part in found.values()):
            continue
        evidence = Evidence(claim, places.budget, {n: f for n, f in found.items() if f})
        for part in evidence.found.values():
            if part.rows:
                judge_part(part)
        judge_claim(evidence)
        evidence.changed = _kept(claim, places) != declared_hash(claim)
        if evidence.changed:
            evidence.line += (
                " Judged by thresholds or a metric that were changed after the first run."
            )
        family.append(evidence)
    judge_family(family)
    return family


def verdicts(family: Sequence[Evidence]) -> dict[str, Any]:
    """The content of verdicts.json: the same for the same runs, but for keys named `times`."""
    return {evidence.claim.name: _claim_json(evidence) for evidence in family}


def provenance(family: Sequence[Evidence]) -> dict[str, Any]:
    """Commits, versions, devices and corpora of all runs, each named once."""
    kept: dict[str, set[str]] = {}
    for evidence in family:
        for found in evidence.found.values():
            for rows in found.rows.values():
                for row in rows:
                    for name, value in row.get("provenance", {}).items():
                        kept.setdefault(name, set()).add(json.dumps(value, sort_keys=True))
    return {name: [json.loads(v) for v in sorted(values)] for name, values in sorted(kept.items())}


def _kept(claim: Claim, places: Places) -> str:
    try:
        return str(read_json(places.declared(claim.name))["hash"])
    except (OSError, ValueError, KeyError):
        return ""


def _found(claim: Claim, name: str, plan: Plan, places: Places) -> Found | None:
    """A part with its rows; None where rows are missing."""
    part = claim.part(name)
    found = Found(part)
    if part.budgets.get(places.budget) is None:  # type: ignore[call-overload]
        found.remark = f"not judged at the budget {places.budget}"
        return found
    if (claim.name, name) in plan.unmet:
        found.remark = f"precondition not met: {plan.unmet[claim.name, name]}"
        return found
    for (owner, of, arm, seed), ids in plan.rows.items():
        if (owner, of) != (claim.name, name):
            continue
        row = _row(*ids, places)
        if row is None:
            return None
        found.rows.setdefault(arm, []).append(row)
        if seed not in found.seeds:
            found.seeds.append(seed)
    return found


def _row(id_: str, reading: str, places: Places) -> Row | None:
    row = places.read_row(id_)
    if row is None or not reading or row["status"] == "failed":
        return row
    read = places.read_row(reading)
    if read is None or read["status"] == "failed":
        return read
    return row | {"readings": read["values"], "values": row["values"] | read["values"]}


def _claim_json(evidence: Evidence) -> dict[str, Any]:
    claim = evidence.claim
    timed = any(part.timed for part in claim.parts)
    content: dict[str, Any] = {
        "says": claim.says,
        "verdict": evidence.verdict,
        "sentence": evidence.sentence,
        "line": evidence.line,
        "p": evidence.p,
        "p_holm": evidence.p_holm,
        "declared": declared_hash(claim),
        "declared_before_runs": not evidence.changed,
        "parts": {name: _part_json(found) for name, found in evidence.found.items()},
    }
    if timed:
        content["times"] = {"line": content.pop("line")}
    return content


def _part_json(found: Found) -> dict[str, Any]:
    part, outcome = found.part, found.outcome
    content: dict[str, Any] = {
        "says": part.says,
        "predicted": part.test.wording,
        "counts": part.counts,
        "verdict": outcome.verdict if outcome else None,
        "remark": found.remark,
        "seeds": found.seeds,
    }
    if isinstance(part, Trained):
        content["metric"] = part.metric if isinstance(part.metric, str) else part.metric.value
        content["diverged"] = found.diverged if found.rows else {}
        content["failed"] = [
            {"run": row["label"], "reason": row["reason"]}
            for rows in found.rows.values()
            for row in rows
            if row["status"] == "failed"
        ]
    if isinstance(part, Measured):
        content["metric"] = part.value
    figures: dict[str, Any] = {"values": found.values, "scores": found.scores}
    if outcome is not None:
        figures |= {"line": outcome.line, "p": outcome.p, "sign_flip_p": outcome.sign_flip_p}
        if outcome.summary is not None:
            summary = dataclasses.asdict(outcome.summary)
            figures |= {name: None if x != x else x for name, x in summary.items()}  # NaN: null
    seconds = [row["times"].get("seconds") for rows in found.rows.values() for row in rows]
    content["times"] = {"seconds": seconds}
    (content["times"] if part.timed else content).update(figures)
    return content
