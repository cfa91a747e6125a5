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
from attnlab.claims.declared import commit_of, has_commit, head_of, why_undeclared
from attnlab.claims.elsewhere import RowsByFile, committed_rows, findings_by_others, readings_of
from attnlab.claims.finding import Finding, judge_prediction, rows_of_arm, rows_of_findings
from attnlab.claims.judge import Evidence, common_verdict, verdict_on_sentence
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows, kept_rows, other_instruction_set
from attnlab.claims.trials import (
    Row,
    Run,
    each_once,
    is_measurement,
    is_pilot,
    pilots_and_tests,
)
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
        """The verdict on the sentence: that of its predictions, or undecided if that was withdrawn
        or is contradicted by the rows of others."""
        is_doubtful = self.claim.withdrawn or self.contradicted_by()
        return "undecided" if is_doubtful else self.verdict_of_predictions

    def contradicted_by(self) -> list[str]:
        """The names of other claims, or of the ranking, whose rows decide a prediction in such a
        way that the verdict of all predictions would be another one if theirs counted as well."""
        own = self.evidence().values()
        names: dict[str, None] = {}  # in order, each once
        for finding in self.needed():
            for name, there in self.elsewhere.get(finding.name, {}).items():
                theirs = Evidence(finding.prediction.role, there.verdict)
                with_theirs = verdict_on_sentence([*own, theirs])
                if there.is_decided and with_theirs != self.verdict_of_predictions:
                    names[name] = None
        return list(names)

    def why_open(self, finding: Finding) -> str:
        """Why a prediction counts as open although its own seeds decide it, in words; empty if it
        does not, or if the verdict on the sentence does not need it."""
        if not finding.prediction.is_needed or not finding.is_decided:
            return ""
        if without_room := finding.seeds_without_room:
            seeds = f"{without_room} of {finding.tally.n} seeds"
            _, baseline = finding.arms
            return f"no room: in {seeds}, “{baseline}” is so good that no help could be seen"
        for name, there in self.elsewhere.get(finding.name, {}).items():
            if there.is_decided and there.verdict != finding.verdict:
                return f"the rows of {name} say otherwise: {there.verdict}"
        return ""

    @property
    def verdict_of_predictions(self) -> str:
        """The verdict on the sentence that follows from its predictions alone, whether or not it
        was withdrawn or is contradicted by the rows of others."""
        return verdict_on_sentence(self.evidence().values())

    def evidence(self) -> dict[str, Evidence]:
        """What each prediction says of the sentence, by its key. It is open unless all its lengths
        and, where it was repeated, both instruction sets give one verdict; and where `why_open`
        has a reason."""
        verdicts: dict[str, list[str]] = defaultdict(list)
        for finding in self.findings:
            verdicts[finding.key].append("open" if self.why_open(finding) else finding.verdict)
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
        """Every row of the test with its finding; a row that several findings read comes once for
        each."""
        yield from rows_of_findings(self.findings)

    def why_exploratory(self) -> str:
        """Why the claim was not tested as declared, in a sentence; empty if it was. Either rows of
        its test or of the repetition are not of a declared test, or a prediction that is said to
        be at risk was not."""
        rows = [*self.test_rows(), *rows_of_findings(self.again.values())]
        tested = set()
        for finding, row in rows:
            if finding.verdict != "shown":  # what is not judged needs no declaration
                # The keys of what is declared: here one, in the ranking a variant and a task.
                tested.add((row["commit"], (finding.key,)))
        if why := why_undeclared(self.claim.file, tested, declaration_of):
            return why
        for finding in self.findings:
            # Not where it is None: git does not show it, so the claim may be right.
            if finding.prediction.at_risk and self.was_at_risk(finding) is False:
                return (
                    f"Exploratory: {finding.key} is not at risk; all its arms had runs before it."
                )
        return ""

    def was_at_risk(self, finding: Finding) -> bool | None:
        """Whether an arm of a prediction had no row before the prediction was declared, so that
        its value was unknown; None if git does not show when it was declared."""
        file = self.claim.file
        keys = (finding.key,)
        if why_undeclared(file, [(head_of(file.parent), keys)], declaration_of):
            return None  # today's declaration is not committed, or git knows nothing
        for of_arm in finding.known:
            tested = {(row["commit"], keys) for row in of_arm}
            # Each row of the arm, if there is any, was made when this was declared already.
            if not why_undeclared(file, tested, declaration_of):
                return True
        commits = {row["commit"] for of_arm in finding.known for row in of_arm}
        # A commit with a + does not tell what the file declared when the run was made.
        return False if all(has_commit(file.parent, commit) for commit in commits) else None


def judge_files(claim: Claim, committed: RowsByFile | None = None) -> JudgedClaim:
    """Judge a claim by its committed rows, by those of its repetition, and by what the rows of
    others say of the same arms. `committed`: all committed rows, if they were read already."""
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
    """Judge a claim by the rows of its test or, with `pilots`, by those of its pilots.

    `again`: rows of its repetition with another instruction set, which counts for predictions of
    which all seeds that are due were repeated. `committed`: the rows of all claims and of the
    ranking, which may have trained the same arms.
    """
    findings = findings_of(claim, rows, pilots=pilots)
    if committed:
        findings = [with_known_rows(claim, finding, committed) for finding in findings]
    repeated = {}
    if again:
        for finding in findings_again(claim, rows, again):
            if finding.is_complete:
                repeated[finding.name] = finding
    elsewhere = {}
    for finding in findings:
        if there := dict(findings_by_others(claim, finding, committed or {})):
            elsewhere[finding.name] = there
    return JudgedClaim(claim, findings, repeated, elsewhere)


def findings_of(claim: Claim, rows: Mapping[Run, Row], *, pilots: bool = False) -> list[Finding]:
    """Each prediction at each of its lengths, judged by the seeds that test it or, with `pilots`,
    by its seeds before the declaration."""
    findings = []
    for name, prediction in claim.predictions.items():
        seeds = claim.pilots_of(prediction) if pilots else claim.seeds_of(prediction)
        for steps in prediction.steps:
            findings.append(judge_prediction(claim, rows, name, steps, seeds))
    return findings


def with_known_rows(claim: Claim, finding: Finding, committed: RowsByFile) -> Finding:
    """The finding with the rows that trained or measured one of its arms, in all committed files,
    as `known`; unchanged if its prediction is not said to be at risk, for which alone they are
    needed."""
    if not finding.prediction.at_risk:
        return finding
    own_file = committed.get(claim.folder / COMMITTED, {})
    known = []
    for name, arm in finding.arms.items():
        # A measurement is a function of the claim's own directory, so other files do not have it.
        of_arm = rows_of_arm(arm, own_file) if is_measurement(arm.overrides) else []
        for rows in committed.values():
            readings = readings_of(arm, finding.rows[name], rows, claim.folder.parent)
            of_arm += [reading.row for reading in readings]
        known.append(of_arm)
    return replace(finding, known=known)


def findings_again(
    claim: Claim, rows: Mapping[Run, Row], again: Mapping[Run, Row]
) -> list[Finding]:
    """The findings on which the verdict depends, by the tests of another instruction set in
    `again`, at the rates that the pilots in `rows` choose."""
    findings = findings_of(claim, pilots_and_tests(rows, again))
    return [finding for finding in findings if finding.prediction.is_needed]


def missing_runs(
    claim: Claim, rows: Mapping[Run, Row], *, pilots: bool = False, long: bool = True
) -> list[Run]:
    """The runs that can be made now, of the test or, with `pilots`, before it; after them there
    may be more. Without `long`, none of predictions that are marked `long`.

    Both first try the learning rates and then run seeds at the best one: pilots a few, the
    declared test ten, and then the seeds of the next stage while that can decide.
    """
    wanted = []
    for finding in findings_of(claim, rows, pilots=pilots):
        prediction = finding.prediction
        if prediction.long and not long:
            continue
        # What is only shown, and not judged, needs no pilots.
        if not (pilots and prediction.role == "shown"):
            wanted.append(finding)
    return each_once(finding.missing for finding in wanted)


def missing_again(claim: Claim, rows: Mapping[Run, Row], again: Mapping[Run, Row]) -> list[Run]:
    """The test runs on which the verdict depends and that are not yet repeated with another
    instruction set, as far as they are due. First come those of predictions on which seeds agree
    least, as their values lie on both sides of a threshold: a repetition may be ended before all
    is repeated."""
    share = {finding.name: finding.tally.largest_share for finding in findings_of(claim, rows)}
    findings = sorted(findings_again(claim, rows, again), key=lambda each: share[each.name])
    missing = each_once(finding.missing for finding in findings)
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
    """What `attnlab reproduce` has to do for a claim, in a directory of its own in `outputs`: the
    missing runs of its test or, with `pilots`, those before it; with `long`, also those of
    predictions that are marked `long`. With `fresh`, the whole test is run once more, at the
    learning rates that the committed pilots choose, and kept apart. With `again`, what decides is
    repeated with another instruction set."""
    outputs = outputs.resolve() / claim.folder.name
    kept = kept_rows(claim.folder, outputs)
    rows = kept.rows
    if fresh:
        rows = Rows(outputs / "fresh.jsonl")
        # The pilots of the committed rows, which are not written again.
        rows |= pilots_and_tests(Rows(claim.folder / COMMITTED), {})
    if again:
        missing = partial(missing_again, claim, rows, kept.again)
    else:
        missing = partial(missing_runs, claim, rows, pilots=pilots, long=long)
    return Work(
        folder=claim.folder,
        outputs=outputs / "again" if again else outputs,
        rows=rows,
        commit=kept.commit,
        missing=missing,
        reads=functions_by_arm(claim),
        again=None if fresh else kept.again,
        smaller_set=instruction_set_of_repetition(claim, rows, kept.again) if again else "",
    )


def warning_of_seen_seeds(claim: Claim, outputs: Path) -> str:
    """A warning if runs that are not committed used seeds of the test, as a threshold that follows
    those runs is not tested by the same seeds; empty if they did not."""
    own = Rows(outputs.resolve() / claim.folder.name / COMMITTED)
    committed = Rows(claim.folder / COMMITTED)
    seen = {run.seed for run in own.keys() - committed.keys() if not is_pilot(run.seed)}
    tested: set[int] = set()
    for prediction in claim.predictions.values():
        tested |= set(claim.seeds_of(prediction))
    seen &= tested
    commit = commit_of(claim.folder)
    is_exploratory_anyway = commit == "" or commit.endswith("+")
    if not seen or is_exploratory_anyway:
        return ""
    return (
        f"Exploratory: seeds {min(seen)} to {max(seen)} were run before ({own.file}); choose "
        "another first_seed, so that no threshold can follow the runs that test it."
    )


def instruction_set_of_repetition(
    claim: Claim, rows: Mapping[Run, Row], again: Mapping[Run, Row]
) -> str:
    """The instruction set with which `--again` repeats the test of a claim: another one than that
    of its rows on which the verdict depends."""
    needed = rows_of_findings(judge_claim(claim, rows).needed())
    return other_instruction_set([row for _, row in needed], again)
