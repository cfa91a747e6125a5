"""What rows make of a claim: verdicts on its predictions and its sentence, and what is missing.

The runs that decide can be repeated with another instruction set of the processor, whose rounding
differs. A verdict that changes is no verdict: then the prediction is open.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from attnlab.claims.claim import Claim, declaration_of, functions_by_arm
from attnlab.claims.declared import commit_of, head_of, knows, undeclared
from attnlab.claims.elsewhere import RowsByFile, committed_rows, judged_by_others, readings_of
from attnlab.claims.finding import Finding, judge_prediction, rows_of_findings
from attnlab.claims.judge import Evidence, common_verdict, verdict_on_sentence
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows, another_set, kept_rows
from attnlab.claims.trials import Row, Run, each_once, is_pilot, with_tests
from attnlab.claims.work import Work


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the verdict on its sentence, and a finding a prediction and length.

    `again` has findings by name, of predictions that decide and of controls, where all runs were
    repeated with another instruction set. `elsewhere` has what other claims, and the ranking,
    make of a finding by their own rows: by its name, then by theirs.
    """

    claim: Claim
    findings: Sequence[Finding]
    again: Mapping[str, Finding] = field(default_factory=dict)
    elsewhere: Mapping[str, Mapping[str, Finding]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The verdict on the sentence; undecided if that of its predictions was withdrawn, or
        would be another one with what rows of others decide."""
        is_doubtful = self.claim.withdrawn or self.contradicted_by()
        return "undecided" if is_doubtful else self.verdict_of_predictions

    def contradicted_by(self) -> list[str]:
        """Who has rows that decide a prediction so that the verdict would be another one."""
        own = self.evidence().values()
        against: dict[str, None] = {}  # in order, each once
        for finding in self.needed():
            for name, there in self.elsewhere.get(finding.name, {}).items():
                theirs = Evidence(finding.prediction.role, there.verdict)
                with_theirs = verdict_on_sentence([*own, theirs])
                if there.is_decided and with_theirs != self.verdict_of_predictions:
                    against[name] = None
        return list(against)

    def doubt(self, finding: Finding) -> str:
        """Why a prediction that is needed is open although its rows decide it; or nothing."""
        if not finding.prediction.is_needed or not finding.is_decided:
            return ""
        if without := finding.without_room:
            seeds = f"{without} of {finding.tally.n} seeds"
            baseline = [*finding.arms][1]
            return f"no room: in {seeds}, “{baseline}” is so good that no help could be seen"
        for name, there in self.elsewhere.get(finding.name, {}).items():
            if there.is_decided and there.verdict != finding.verdict:
                return f"the rows of {name} say otherwise: {there.verdict}"
        return ""

    @property
    def verdict_of_predictions(self) -> str:
        """The verdict that follows from the predictions alone."""
        return verdict_on_sentence(self.evidence().values())

    def evidence(self) -> dict[str, Evidence]:
        """What each prediction says of the sentence, by its key. It is open if its lengths, or its
        two instruction sets, do not all say the same, and where there is a doubt."""
        verdicts: dict[str, list[str]] = defaultdict(list)
        for finding in self.findings:
            verdicts[finding.key].append("open" if self.doubt(finding) else finding.verdict)
            if finding.name in self.again:
                verdicts[finding.key].append(self.again[finding.name].verdict)
        evidence = {}
        for key, of_key in verdicts.items():
            evidence[key] = Evidence(self.claim.predictions[key].role, common_verdict(of_key))
        return evidence

    def needed(self) -> list[Finding]:
        """The findings on which the verdict on the sentence depends."""
        return [finding for finding in self.findings if finding.prediction.is_needed]

    def test_rows(self) -> Iterator[tuple[Finding, Row]]:
        """Every row of the test; one that several predictions read, once for each."""
        yield from rows_of_findings(self.findings)

    def exploratory(self) -> str:
        """Why its rows are not a declared test, in a sentence; empty if they are."""
        rows = [*self.test_rows(), *rows_of_findings(self.again.values())]
        made = set()
        for finding, row in rows:
            if finding.verdict != "shown":  # what is not judged needs no declaration
                made.add((row["commit"], (finding.key,)))
        if why := undeclared(self.claim.file, made, declaration_of):
            return why
        for finding in self.findings:
            # None where git does not show it: then the mark cannot be checked.
            if finding.prediction.at_risk and self.was_at_risk(finding) is False:
                return (
                    f"Exploratory: {finding.key} is not at risk; all its arms had runs before it."
                )
        return ""

    def was_at_risk(self, finding: Finding) -> bool | None:
        """Whether an arm of a prediction had no row before the prediction was declared, so that
        its value was unknown; None if git does not show when it was declared."""
        file = self.claim.file
        of = (finding.key,)
        if undeclared(file, [(head_of(file.parent), of)], declaration_of):
            return None
        for of_arm in finding.known:
            made = {(row["commit"], of) for row in of_arm}
            if not undeclared(file, made, declaration_of):  # each row, if any, came after it
                return True
        commits = {row["commit"] for of_arm in finding.known for row in of_arm}
        # A commit with a + does not tell what the file declared when the run was made.
        return False if all(knows(file.parent, commit) for commit in commits) else None


def judge_files(claim: Claim, committed: RowsByFile | None = None) -> JudgedClaim:
    """Judge a claim by its committed rows, by those of another instruction set, and by what the
    rows of others say of the same arms."""
    committed = committed_rows(claim.folder.parent) if committed is None else committed
    rows = committed.get(claim.folder / COMMITTED, {})
    again = committed.get(claim.folder / COMMITTED_AGAIN, {})
    return judge_claim(claim, rows, again=again, committed=committed)


def judge_claim(
    claim: Claim,
    rows: Mapping[Run, Row],
    *,
    pilots: bool = False,
    again: Mapping[Run, Row] | None = None,
    committed: RowsByFile | None = None,
) -> JudgedClaim:
    """Judge a claim by the rows of its test, or by those of pilots. `again`: rows of another
    instruction set; `committed`: those of all claims and of the ranking, which may have trained
    the same."""
    findings = findings_of(claim, rows, pilots=pilots)
    if committed:
        findings = [with_known(claim, finding, committed) for finding in findings]
    repeated = {}
    if again:
        for finding in findings_again(claim, rows, again):
            if finding.is_complete:
                repeated[finding.name] = finding
    elsewhere = {}
    for finding in findings:
        if there := dict(judged_by_others(claim, finding, committed or {})):
            elsewhere[finding.name] = there
    return JudgedClaim(claim, findings, repeated, elsewhere)


def findings_of(claim: Claim, rows: Mapping[Run, Row], *, pilots: bool = False) -> list[Finding]:
    """Each prediction at each of its lengths, by the seeds that test it, or by those of pilots."""
    findings = []
    for name, prediction in claim.predictions.items():
        seeds = claim.pilots_of(prediction) if pilots else claim.seeds_of(prediction)
        for steps in prediction.steps:
            findings.append(judge_prediction(claim, rows, name, steps, seeds))
    return findings


def with_known(claim: Claim, finding: Finding, committed: RowsByFile) -> Finding:
    """A finding with the rows of its arms in all files, if its prediction is at risk."""
    if not finding.prediction.at_risk:
        return finding
    known = []
    for name, arm in finding.arms.items():
        of_arm = []
        for rows in committed.values():
            readings = readings_of(arm, finding.rows[name], rows, claim.folder.parent)
            of_arm += [reading.row for reading in readings]
        known.append(of_arm)
    return replace(finding, known=known)


def findings_again(
    claim: Claim, rows: Mapping[Run, Row], again: Mapping[Run, Row]
) -> list[Finding]:
    """The findings of the predictions that decide, by the tests of another instruction set in
    `again`, at the rates that the pilots in `rows` choose."""
    findings = findings_of(claim, with_tests(rows, again))
    return [finding for finding in findings if finding.prediction.is_needed]


def missing_runs(
    claim: Claim, rows: Mapping[Run, Row], *, pilots: bool = False, long: bool = True
) -> list[Run]:
    """The runs that can be made now; after them there may be more.

    Pilots try the rates, then run a few seeds at the best one. The declared test starts with ten
    seeds, and goes on to the next stage while that can decide.
    """
    wanted = []
    for finding in findings_of(claim, rows, pilots=pilots):
        prediction = finding.prediction
        if (long or not prediction.long) and not (pilots and prediction.role == "shown"):
            wanted.append(finding)
    return each_once(finding.missing for finding in wanted)


def missing_again(claim: Claim, rows: Mapping[Run, Row], again: Mapping[Run, Row]) -> list[Run]:
    """The runs of what decides that were not repeated with another instruction set."""
    missing = each_once(finding.missing for finding in findings_again(claim, rows, again))
    return [run for run in missing if not is_pilot(run.seed)]  # a lost pilot is not repeated


def open_claim(
    claim: Claim,
    outputs: Path,
    *,
    pilots: bool = False,
    long: bool = False,
    fresh: bool = False,
    again: bool = False,
) -> Work:
    """What `attnlab reproduce` does for a claim: its test or, with `pilots`, the pilots; `long`
    also runs what the claim marks so. With `fresh`, committed rows choose the learning rates, and
    the test is run again; with `again`, what decides is repeated with another instruction set."""
    outputs = outputs.resolve() / claim.folder.name
    kept = kept_rows(claim.folder, outputs)
    rows = kept.rows
    if fresh:
        rows = Rows(outputs / "fresh.jsonl")
        # The pilots of the committed rows, which are not written again.
        rows |= with_tests(Rows(claim.folder / COMMITTED), {})
    missing = partial(missing_runs, claim, rows, pilots=pilots, long=long)
    if again:
        missing = partial(missing_again, claim, rows, kept.again)
    return Work(
        folder=claim.folder,
        outputs=outputs / "again" if again else outputs,
        rows=rows,
        commit=kept.commit,
        missing=missing,
        reads=functions_by_arm(claim),
        again=None if fresh else kept.again,
        smaller_set=set_to_repeat(claim, rows, kept.again) if again else "",
    )


def seeds_seen(claim: Claim, outputs: Path) -> str:
    """A warning if exploratory runs used seeds of the test, or nothing: a threshold that follows
    them is not tested by the same seeds."""
    own = Rows(outputs.resolve() / claim.folder.name / "rows.jsonl")
    committed = Rows(claim.folder / COMMITTED)
    seen = {run.seed for run in own.keys() - committed.keys() if not is_pilot(run.seed)}
    tested: set[int] = set()
    for prediction in claim.predictions.values():
        tested |= set(claim.seeds_of(prediction))
    seen &= tested
    if not seen or commit_of(claim.folder)[-1:] in ("", "+"):
        return ""  # those are exploratory anyway
    return (
        f"Exploratory: seeds {min(seen)} to {max(seen)} were run before ({own.file}); choose "
        "another first_seed, so that no threshold can follow the runs that test it."
    )


def set_to_repeat(claim: Claim, rows: Mapping[Run, Row], again: Mapping[Run, Row]) -> str:
    """The instruction set of `--again` for a claim."""
    needed = rows_of_findings(judge_claim(claim, rows).needed())
    return another_set([row for _, row in needed], again)
