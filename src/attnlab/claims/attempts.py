"""Earlier attempts at a claim, dropped predictions, and words that were changed, as git has them.

Each attempt has seeds of its own, so each is a fair test; but a false verdict can occur in each,
and a threshold may follow what an earlier attempt showed. So the page of a claim lists them.

Words may be changed after the runs, because thresholds and seeds alone decide. But a sentence that
was written after a result may fit it better than the one that was tested, so the page has both.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from attnlab.claims.claim import Claim
from attnlab.claims.declared import content_at, git
from attnlab.claims.finding import Finding
from attnlab.claims.judged_claim import JudgedClaim, judge_claim
from attnlab.claims.markdown import markdown_table
from attnlab.claims.trials import Row, Run

LEGACY_VERDICTS = {"holds only if": "holds in part", "open": "undecided"}
WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class EarlierPrediction:
    """A prediction of an earlier attempt, and how it came out."""

    says: str
    verdict: str
    agree: int | None  # seeds that agree, of n
    n: int | None
    bounds: frozenset[float]  # its thresholds


@dataclass(frozen=True)
class Attempt:
    """One published test of a claim."""

    date: str
    commit: str
    first_seed: int | None  # None: before claims were declared
    verdict: str
    predictions: Mapping[str, EarlierPrediction]  # by name, with the length if there are several


def attempts_of(claim: Claim, rows: Mapping[Run, Row]) -> list[Attempt]:
    """All published tests of a claim that git knows, the oldest first; the last may be today's.
    `rows` are those of the claim, of all its tests."""
    by_seed = {attempt.first_seed: attempt for attempt in yaml_attempts(claim, rows)}
    attempts = []
    for legacy in legacy_attempts(claim.folder):
        # A test of which both formats tell has one first seed. Its numbers are those that were
        # published then; that it was withdrawn since, claim.yaml alone can say.
        in_yaml = by_seed.pop(legacy.first_seed, None)
        if in_yaml is not None and in_yaml.verdict == WITHDRAWN:
            legacy = replace(legacy, verdict=WITHDRAWN)
        attempts.append(legacy)
    return [*attempts, *by_seed.values()]


class Commit(NamedTuple):
    """A commit, and when it was made."""

    commit: str
    date: str


def commits_of(file: Path) -> list[Commit]:
    """The commits that changed a file, the oldest first."""
    log = git(file.parent, "log", "--reverse", "--format=%H %cs", "--", file.name) or ""
    return [Commit(*line.split()) for line in log.splitlines()]


@cache
def legacy_attempts(folder: Path) -> list[Attempt]:
    """The tests that were published before there was claim.yaml, the oldest first: each version of
    verdict.json had the verdicts and numbers of one."""
    by_version: dict[int, Attempt] = {}
    for commit, date in commits_of(folder / "verdict.json"):
        text = git(folder, "show", f"{commit}:./verdict.json")
        if text is None:  # this commit removed it
            continue
        content = json.loads(text)
        predictions = {}
        seeds: set[int] = set()
        for name, entry in content.get("predictions", {}).items():
            predictions[name] = legacy_prediction(entry)
            seeds |= set(entry["seeds"])
        verdict = LEGACY_VERDICTS.get(content["verdict"], content["verdict"])
        version = content["version"]
        attempt = Attempt(date, commit, min(seeds, default=None), verdict, predictions)
        if version in by_version:  # corrected later: it counts as published when it first was
            first = by_version[version]
            attempt = replace(attempt, date=first.date, commit=first.commit)
        by_version[version] = attempt
    return list(by_version.values())


def legacy_prediction(entry: Mapping[str, Any]) -> EarlierPrediction:
    """A prediction from an entry of verdict.json, which states its threshold in a sentence: the
    first number there."""
    threshold = re.search(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", entry["predicted"])
    bounds = frozenset([float(threshold[0])] if threshold else [])
    agree, n = entry.get("yes"), entry.get("n")  # None where seeds were not counted
    return EarlierPrediction(entry["says"], entry["verdict"], agree, n, bounds)


def yaml_attempts(claim: Claim, rows: Mapping[Run, Row]) -> Iterator[Attempt]:
    """The tests since there is claim.yaml, the oldest first: each first seed that it ever had is
    one attempt, which began at the first commit with it. They are judged by the rows of today,
    which still have those of earlier attempts, as rows are only added."""
    declared: dict[int, dict[str, Any]] = {}  # first seed -> all that was ever declared with it
    began: dict[int, Commit] = {}
    for commit, date in commits_of(claim.file):
        content = content_at(claim.file, commit)
        if content is None:  # this commit removed the file
            continue
        seed = content["first_seed"]
        # Arms and predictions that a later commit dropped are kept: they were tested, too.
        before = declared.get(seed, {"arms": {}, "predictions": {}})
        merged = {key: before[key] | content[key] for key in ("arms", "predictions")}
        declared[seed] = content | merged
        began.setdefault(seed, Commit(commit, date))
    for seed, content in declared.items():
        try:
            then = Claim(**content, file=claim.file)
        except ValidationError:
            continue  # what cannot be read was not tested
        judged = judge_claim(then, rows)
        predictions = {finding.name: earlier_prediction(finding) for finding in judged.findings}
        commit, date = began[seed]
        verdict = WITHDRAWN if then.withdrawn else judged.verdict
        yield Attempt(date, commit, seed, verdict, predictions)


def earlier_prediction(finding: Finding) -> EarlierPrediction:
    """What an attempt keeps of a finding: words, verdict, seeds that agree, and thresholds."""
    prediction = finding.prediction
    tally = finding.tally
    bounds = frozenset(filter(math.isfinite, (prediction.above, prediction.below)))
    return EarlierPrediction(prediction.says, finding.verdict, tally.agree, tally.n, bounds)


def attempts_in_words(judged: JudgedClaim, attempts: Sequence[Attempt]) -> str:
    """The section of a page on earlier attempts: the tests with other seeds; and, of all attempts,
    predictions that were dropped since, and thresholds that are others today. Empty if there is
    nothing to say."""
    claim = judged.claim
    today = {finding.name: earlier_prediction(finding) for finding in judged.findings}
    earlier = [attempt for attempt in attempts if attempt.first_seed != claim.first_seed]
    paragraphs = []
    if earlier:
        lines = [[x.date, x.commit[:8], first_seed_in_words(x), x.verdict] for x in earlier]
        table = markdown_table(["published", "commit", "seeds from", "verdict"], lines)
        paragraphs.append(
            "The claim was tested before, with other seeds. A false verdict can occur in each "
            f"test, and a threshold may follow what an earlier one showed.\n\n{table}"
        )
    dropped: dict[str, str] = {}  # name -> line; of several attempts, the last one counts
    moved: dict[str, str] = {}
    for attempt in attempts:
        for name, then in attempt.predictions.items():
            # A prediction that is judged at several lengths today is not dropped: its names in
            # `today` end in the steps, and its key in the claim is still `name`.
            if name not in today and name not in claim.predictions:
                dropped[name] = f"- `{name}`: {then.says} {result_of(then, attempt)}"
            elif name in today and has_other_threshold(then.bounds, today[name].bounds):
                bounds = " to ".join(f"{x:g}" for x in sorted(then.bounds))
                moved[name] = f"- `{name}`, {bounds}: {then.says} {result_of(then, attempt)}"
    if dropped:
        paragraphs.append("\n".join(["Declared then, and not today:\n", *dropped.values()]))
    if moved:
        paragraphs.append("\n".join(["With another threshold then:\n", *moved.values()]))
    return "\n\n".join(["## Earlier tests", *paragraphs]) if paragraphs else ""


def section_on_changed_words(judged: JudgedClaim) -> str:
    """The section of a page on words that were changed after the runs; empty if there are none."""
    lines = wordings_at_test(judged)
    if not lines:
        return ""
    same = "Thresholds, arms and seeds are those that were declared."
    heading = "## Words that were changed after the runs"
    return "\n".join([heading, "", f"{same} When the runs were made, it said:", "", *lines])


def wordings_at_test(judged: JudgedClaim) -> list[str]:
    """What the claim and its predictions said at the commits at which their tests were run, where
    they say something else today, as lines of a list. Rows whose commit git does not know say
    nothing."""
    claim = judged.claim
    lines: dict[str, None] = {}  # each once, in order
    for finding, row in judged.test_rows():
        then = content_at(claim.file, row["commit"]) if row["commit"] else None
        if then is None:
            continue
        if then["says"] != claim.says:
            lines[f"- the sentence: {then['says']}"] = None
        if claim.otherwise and "otherwise" not in then:
            lines["- nothing of what holds instead, which was written after the runs"] = None
        elif then.get("otherwise", "") != claim.otherwise:
            lines[f"- what holds instead: {then['otherwise']}"] = None
        entry = then["predictions"].get(finding.key)
        if entry is None:  # it was added later, and is only shown
            continue
        for key in ("says", "where"):
            before = entry.get(key, "")
            if before != getattr(finding.prediction, key):
                lines[f"- `{finding.key}`, {key}: {before or 'nothing'}"] = None
    return list(lines)


def result_of(prediction: EarlierPrediction, attempt: Attempt) -> str:
    """How a prediction of an attempt came out, in parentheses, with the seeds that agreed and the
    first seed where they are known."""
    counted = f", {prediction.agree} of {prediction.n}" if prediction.n else ""
    if attempt.first_seed is None:
        return f"({prediction.verdict}{counted})"
    return f"({prediction.verdict}{counted}; seeds from {attempt.first_seed})"


def first_seed_in_words(attempt: Attempt) -> str:
    """The first seed of an attempt as text; empty if no seeds were declared."""
    return "" if attempt.first_seed is None else str(attempt.first_seed)


def has_other_threshold(then: frozenset[float], now: frozenset[float]) -> bool:
    """Whether one of the thresholds of then is not among those of now, but for rounding. A
    probability p is the same threshold as -log(p), as it may be stated either way."""
    for x in then:
        same = {x, -math.log(x)} if 0 < x < 1 else {x}
        if not any(math.isclose(a, b, rel_tol=1e-4) for a, b in product(same, now)):
            return True
    return False
