"""What a claim came out as, in Markdown: for the terminal, for its page, and for that of all."""

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.claims.attempts import (
    Attempt,
    attempts_in_words,
    attempts_of,
    section_on_changed_words,
)
from attnlab.claims.claim import Claim, Prediction, overrides_and_rates
from attnlab.claims.elsewhere import RowsByFile, committed_rows
from attnlab.claims.finding import Finding, rows_of_findings
from attnlab.claims.judge import power
from attnlab.claims.judged_claim import JudgedClaim, judge_claim, judge_files
from attnlab.claims.markdown import fill_page, markdown_table
from attnlab.claims.reach import (
    processors_of,
    range_in_words,
    reach_line,
    reasons_for_words,
    risk_in_words,
    verdict_words,
)
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows, refuse_lost_rows
from attnlab.claims.trials import Row, Run, instruction_set_of
from attnlab.claims.work import arm_settings, composed, import_beside
from attnlab.errors import BadInput
from attnlab.plotting.drawing import BLACK, BLUE, GREEN, as_svg, styled
from attnlab.runs.seed_statistics import chance_of_wrong_verdict
from attnlab.runs.share import INTERVAL, share_of
from attnlab.settings.roles import flat, last_of

ABOUT_PREDICTIONS = (
    "docs/claims.md says how they are judged. *Power* is how often a test of as many seeds "
    "confirms a prediction that is true for 90 % of all seeds; and, where not all agree here, for "
    "as many as agree."
)
ABOUT_RISK = (
    "Whether a prediction was at risk is read from the rows of all claims and of the ranking. "
    "Numbers that only documents have cannot be seen."
)
ABOUT_ARMS = (
    "An arm is one side of a comparison. A learning rate that is not among its overrides is the "
    "best of its pilots; where there is none, it is that of the settings."
)
# How a prediction is marked that is said to be at risk, by `JudgedClaim.was_at_risk`.
RISK = {
    True: "at risk, declared before any run of one of its arms: ",
    None: "said to be at risk (cannot be checked): ",
    False: "",  # the page is refused
}
ABOUT_AT_RISK = (
    "how many of the predictions that decide were declared before any run of one of their arms. "
    "Thresholds of the others follow pilots, or were declared when other rows of the lab already "
    "suggested the outcome. "
    "Numbers that only documents have cannot be seen."
)
ABOUT_WORDS = (
    "A verdict on trained models names its length, rate or processor unless it has two lengths, "
    "n and 4 n steps, the best rate of each arm for each, and two processors or instruction sets; "
    "or no length, where a callback ended all runs. "
    "It reaches as far as the predictions that it needs: [docs/claims.md](../docs/claims.md)."
)
ABOUT_HOURS = (
    "CPU hours of runs; *planned*: for the test of today and its pilots, where that was written "
    "down; *test*: of that test, without its pilots; *all*: of all rows, those of pilots and of "
    "earlier tests among them; *again*: with another instruction set."
)
STEP_SETTINGS = {"trainer.max_steps", "trainer.val_check_interval"}


def claim_report(
    claim: Claim,
    rows: Mapping[Run, Row],
    again: Mapping[Run, Row] | None = None,
    committed: RowsByFile | None = None,
    *,
    pilots: bool = False,
    fresh: bool = False,
    warning: str = "",
) -> str:
    """What the terminal shows of a claim: with `pilots`, only the table of what they say; or else
    the verdict, its reach, the table, and the warning, or why it is exploratory, if there is one.
    With `fresh`, also how far the values are from those of the committed rows."""
    if pilots:
        return prediction_table(judge_claim(claim, rows, pilots=True))
    judged = judge_claim(claim, rows, again=again, committed=committed)
    paragraphs = [
        verdict_and_where(judged),
        reach_paragraph(judged),
        processors_in_words(judged),
        prediction_table(judged),
        rows_of_others_in_words(judged),
    ]
    if why := judged.why_exploratory() or warning:
        paragraphs.append(why)
    if fresh:
        paragraphs.append(distance_from_committed(judged))
    return "\n\n".join(filter(None, paragraphs))


def distance_from_committed(judged: JudgedClaim) -> str:
    """How many values of seeds are equal to those of the committed rows, the largest difference,
    and how many are a number on one side alone."""
    then = judge_claim(judged.claim, Rows(judged.claim.folder / COMMITTED))
    differences = []  # NaN where one of both is no number
    for now, before in zip(judged.findings, then.findings, strict=True):
        for x, y in zip(now.values, before.values, strict=False):
            same = x == y or (math.isnan(x) and math.isnan(y))
            differences.append(0.0 if same else abs(x - y))  # inf - inf would be NaN
    equal = f"{differences.count(0)} of {len(differences)} values are those of the committed rows"
    known = [x for x in differences if not math.isnan(x)]
    largest = f"{equal}; the most different one by {max(known, default=0):.2g}"
    unknown = len(differences) - len(known)
    return f"{largest}; {unknown} are numbers in only one of both" if unknown else largest


def publish_claims(claims: Sequence[Claim]) -> Iterator[Path]:
    """Write the figures and pages of claims from the committed rows, and the page of all claims if
    all of their directory are given. Yields each file once it is written. BadInput if rows were
    lost, or are not of a declared test."""
    published = []
    rows_by_file = committed_rows(claims[0].folder.parent)
    for claim in claims:
        refuse_lost_rows(claim.folder)
        judged = judge_files(claim, rows_by_file)
        if why := judged.why_exploratory():
            raise BadInput(f"{claim.folder.name} cannot be published. {why}")
        published.append(judged)
        if drawn_findings(judged):
            figure = claim.folder / "figure.svg"
            figure.write_text(figure_of(judged), encoding="utf-8")
            yield figure
        page = claim.folder / "README.md"
        rows = rows_by_file.get(claim.folder / COMMITTED, {})
        fill_page(page, page_block(judged, attempts_of(claim, rows)))
        yield page
    page_of_all = claims[0].folder.parent / "README.md"
    are_all = len(claims) == len(list(page_of_all.parent.glob("*/claim.yaml")))
    if are_all:
        fill_page(page_of_all, block_of_all_claims(published))
        yield page_of_all


def page_block(judged: JudgedClaim, attempts: Sequence[Attempt] = ()) -> str:
    """The generated part of a claim's page: what came out, how to repeat it, the details, earlier
    attempts, and words that were changed after the runs. Empty paragraphs are left out."""
    claim = judged.claim
    # Each run once, also if several predictions read it.
    rows = {(*row["overrides"], row["seed"]): row for _, row in judged.test_rows()}
    minutes = max(1, round(sum(row["cpu_seconds"] or 0 for row in rows.values()) / 60))
    figure = "![The values of each prediction by seed, and its threshold](figure.svg)"
    repeat = (
        f"## Repeat it\n\n`attnlab reproduce {claim.folder.name} --fresh --long` trains all of it "
        f"again and compares: {len(rows)} runs, {minutes} CPU minutes."
    )
    paragraphs = [
        verdict_and_where(judged),
        reach_paragraph(judged),
        difference_of_conditions(judged),
        processors_in_words(judged),
        figure if drawn_findings(judged) else "",
        repeat if rows else "",
        f"## Predictions\n\n{ABOUT_PREDICTIONS}\n\n{prediction_table(judged)}",
        rows_of_others_in_words(judged),
        ladders(judged),
        f"## Arms\n\n{ABOUT_ARMS}\n\n{arm_table(judged)}",
        attempts_in_words(judged, attempts),
        section_on_changed_words(judged),
        folded("Every seed", seed_tables(judged)),
        folded("Settings of all arms", settings_table(claim)),
    ]
    return "\n\n".join(filter(None, paragraphs))


def folded(summary: str, text: str) -> str:
    """A part of a page of which only the summary is shown before a click."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def verdict_and_where(judged: JudgedClaim) -> str:
    """The sentence and its verdict; that it was withdrawn, or is contradicted by the rows of
    others; and where it is true, false and undecided, in the author's words. Controls that are as
    they must be, and predictions that do not decide, are left out."""
    where: dict[str, list[str]] = {"True": [], "False": [], "Undecided": []}
    for key, evidence in judged.evidence().items():
        prediction = judged.claim.predictions[key]
        says = prediction.says.rstrip(".")
        condition = prediction.where or says
        # Without its control, the sentence is undecided, whatever the others say.
        if evidence.role == "control" and evidence.verdict != "confirmed":
            failed = failed_in_words(judged, key)
            where["Undecided"].append(f"nothing follows: {says}: {failed}")
        elif evidence.is_undecided:
            where["Undecided"].append(condition + why_undecided_in_parentheses(judged, key))
        elif evidence.is_for:
            where["True"].append(condition)
        elif evidence.is_against:
            where["False"].append(condition)
    claim = judged.claim
    lines = [f"**“{claim.says}” Verdict: {short_verdict(judged)}.**", ""]
    if claim.withdrawn:
        was = f"By its predictions alone it was: {judged.verdict_of_predictions}."
        lines += [f"**Withdrawn**: {claim.withdrawn} {was}", ""]
    if names := judged.contradicted_by():
        lines += [f"**Undecided**: rows of {' and '.join(names)} say otherwise (below).", ""]
    for key, conditions in where.items():
        lines += [f"- {key}: {condition}" for condition in conditions]
    return "\n".join(lines)


def failed_in_words(judged: JudgedClaim, key: str) -> str:
    """What a control came out as that is not confirmed, by its key: "refuted after 300 steps", of
    those of its lengths that are not confirmed."""
    found = []
    for finding in judged.findings:
        if finding.key == key and finding.verdict != "confirmed":
            after = "" if finding.steps is None else f" after {finding.steps:,} steps"
            found.append((finding.verdict if finding.values else "not trained yet") + after)
    return ", ".join(found) or "open"  # each length is confirmed, with one instruction set alone


def why_undecided_in_parentheses(judged: JudgedClaim, key: str) -> str:
    """Why a prediction, by its key, is open: that it is not trained yet, or why its own rows,
    which decide it, do not count. In parentheses; empty if its seeds simply do not decide."""
    reasons: dict[str, None] = {}  # in order, each once
    for finding in judged.findings:
        if finding.key == key:
            why = judged.why_open(finding) if finding.values else not_trained_yet(finding)
            if why:
                reasons[why] = None
    return f" ({'; '.join(reasons)})" if reasons else ""


def not_trained_yet(finding: Finding) -> str:
    """That a prediction has no seeds yet, and how many runs of it come next, in words."""
    return f"not trained yet: {len(finding.missing)} runs come next"


def short_verdict(judged: JudgedClaim) -> str:
    """The verdict on the sentence with its reach, or that it was withdrawn; if the sentence does
    not hold, with what was shown instead, where the claim says so."""
    if judged.claim.withdrawn:
        return f"{judged.verdict}, withdrawn"
    if judged.verdict == "does not hold" and judged.claim.otherwise:
        return f"{verdict_words(judged)}: {judged.claim.otherwise}"
    return verdict_words(judged)


def verdict_in_words(judged: JudgedClaim) -> str:
    """The verdict on the sentence as `short_verdict` has it and, if it was withdrawn, why."""
    why = judged.claim.withdrawn
    return f"{short_verdict(judged)}: {why.rstrip('.')}" if why else short_verdict(judged)


class Conditions(NamedTuple):
    """Two findings of which one says that a sentence is true, the other that it is false."""

    true: Finding
    false: Finding
    apart: set[str]  # in what they differ


def difference_of_conditions(judged: JudgedClaim) -> str:
    """For a sentence that holds in part: in which settings a finding that says it is true differs
    from one that says it is false, for the two that differ in the fewest. If these are more than
    one, it was not shown which of them decides. Empty for other verdicts.
    """
    if judged.verdict != "holds in part":
        return ""
    evidence = judged.evidence()
    true = [finding for finding in judged.findings if evidence[finding.key].is_for]
    false = [finding for finding in judged.findings if evidence[finding.key].is_against]
    experiments = judged.claim.folder.parent
    # Never empty: a sentence that holds in part has one of each.
    pairs = [Conditions(a, b, settings_apart(a, b, experiments)) for a, b in product(true, false)]
    a, b, apart = min(pairs, key=lambda pair: len(pair.apart))
    said = f"`{a.name}` (true) and `{b.name}` (false) differ in {', '.join(sorted(apart))}"
    if len(apart) == 1:
        return f"{said}, and in nothing else{words_on_rates(a, b)}."
    return f"{said}: in {len(apart)} things, so it was not shown which of them decides."


def words_on_rates(a: Finding, b: Finding) -> str:
    """That an arm of one finding was trained at another learning rate than the same arm of the
    other, in words; empty if none was, or if one finding does not use the best rates."""
    if not (a.prediction.rates and b.prediction.rates):
        return ""
    for one, other in zip(a.arms, b.arms, strict=False):
        if rate_override(a.rows[one]) != rate_override(b.rows[other]):
            return " but the learning rate, which is the best of each"
    return ""


def rate_override(rows: Sequence[Row]) -> str:
    """The override of the learning rate that the rows of an arm have; empty without one."""
    return last_of(rows[0]["overrides"]).get("optim.lr", "")


def settings_apart(a: Finding, b: Finding, experiments: Path) -> set[str]:
    """The settings in which the arms of two findings differ. All settings of the attention count
    as one, "attn", and those of the number of steps as "steps"; "what is measured" is another."""
    apart = set()
    # Arm by arm: the first of one prediction has the part of the first of the other.
    for one, other in zip(a.arms.values(), b.arms.values(), strict=False):
        mine = arm_settings(one.overrides, experiments)
        others = arm_settings(other.overrides, experiments)
        apart |= {key for key in mine | others if mine.get(key) != others.get(key)}
    if "data._target_" in apart:
        apart.discard("data.source")  # the digest of that class's code
    if apart & STEP_SETTINGS:
        apart = apart - STEP_SETTINGS | {"steps"}
    if any(key.startswith("attn.") for key in apart):
        apart = {key for key in apart if not key.startswith("attn.")} | {"attn"}
    if (a.prediction.metric, a.prediction.read) != (b.prediction.metric, b.prediction.read):
        apart.add("what is measured")
    return apart


def reach_paragraph(judged: JudgedClaim) -> str:
    """The line under the verdict that says on which models, lengths, rates, seeds and processors
    it stands."""
    return f"**Reach**: {reach_line(judged)}."


def processors_in_words(judged: JudgedClaim) -> str:
    """Whether the predictions that decide, and controls, have the same verdicts with another
    instruction set, whose rounding differs, as far as they were repeated. Empty without rows."""
    needed = judged.needed()
    first = processors_of(row for _, row in rows_of_findings(needed))
    if not first:
        return ""
    here = " and ".join(first)
    if not judged.again:
        return (
            f"**One processor.** The runs were made on {here}, and not repeated with another "
            "instruction set, so rounding may decide the verdict."
        )
    second = processors_of(row for _, row in rows_of_findings(judged.again.values()))
    there = " and ".join(second)
    changed = []
    for finding in needed:
        then = judged.again.get(finding.name)
        if then and then.verdict != finding.verdict:
            changed.append(
                f"`{finding.name}` is {finding.verdict} on {here} and {then.verdict} on {there}"
            )
    if changed:
        return f"**Not the same on two.** {'; '.join(changed)}. So it is open."
    if len(judged.again) < len(needed):
        repeated = f"{len(judged.again)} of {len(needed)} predictions"
        return f"**One processor, in part two.** {repeated} were repeated on {there}: the same."
    # Without the instruction set, which each has in parentheses.
    first_models = {name.partition(" (")[0] for name in first}
    second_models = {name.partition(" (")[0] for name in second}
    is_on_others = first_models.isdisjoint(second_models)
    two = "two processors" if is_on_others else "two instruction sets"
    return (
        f"**Same on {two}**, {here} and {there}. Each prediction that decides was repeated with "
        f"the same seeds, whose values differ by at most {largest_differences(judged)}."
    )


def largest_differences(judged: JudgedClaim) -> str:
    """The largest difference of a seed's value between the two instruction sets, for each unit of
    the predictions that were repeated: all that decide, and controls."""
    largest: dict[str, float] = {}
    for finding in judged.needed():
        then = judged.again[finding.name]
        unit = finding.prediction.unit
        largest[unit] = max(largest.get(unit, 0.0), largest_seed_difference(finding, then))
    return " and ".join(f"{x:.2g} {unit}".strip() for unit, x in largest.items())


def largest_seed_difference(finding: Finding, then: Finding) -> float:
    """The largest difference between the values of a seed in two findings, those of one prediction
    with two instruction sets."""
    pairs = zip(finding.values, then.values, strict=False)
    return max(0.0 if x == y else abs(x - y) for x, y in pairs)  # inf - inf would be NaN


def rows_of_others_in_words(judged: JudgedClaim) -> str:
    """What the rows of other claims, and of the ranking, say of the same arms, and why it may not
    be the same, in the author's words; empty if nobody else has such rows."""
    lines = []
    for finding in judged.findings:
        for name, there in judged.elsewhere.get(finding.name, {}).items():
            agree = f"{there.tally.agree} of {there.tally.n} agree"
            measured = median_in_words(there, signed=True)
            lines.append(f"- `{finding.name}` by the rows of {name}: {agree}; {measured}")
    if not lines:
        return ""
    how = "with other seeds or at other rates (constant ones in the ranking)"
    same = f"Others trained the same arms for as many steps, {how}:"
    why = [f"- {name}: {reason}" for name, reason in judged.claim.differs.items()]
    return "\n".join([same, "", *lines, *why])


def prediction_table(judged: JudgedClaim) -> str:
    """A table with a line for each prediction and length: its sentence and marks, verdict, seeds
    that agree, median with interval, and power; and, if the claim was repeated with another
    instruction set, what came out there."""
    heads = ["prediction", "verdict", "seeds that agree", "median (95 %)", "power"]
    if judged.again:
        sets = {instruction_set_of(row) for _, row in rows_of_findings(judged.again.values())}
        heads.append(f"on {' and '.join(sorted(sets))}")
    prefixes = {"for": "", "shown": "", "against": "against the sentence: "}
    lines = []
    for finding in judged.findings:
        prediction = finding.prediction
        tally = finding.tally
        says = prefixes.get(prediction.role, f"{prediction.role}: ") + prediction.says
        if finding.steps:
            says += f" After {finding.steps:,} steps."
        if prediction.at_risk:
            says = RISK[judged.was_at_risk(finding)] + says
        if finding.arms_at_edge:
            says += (
                f" {' and '.join(finding.arms_at_edge)}: the best rate is at the end of the grid."
            )
        agree = f"{tally.agree} of {tally.n}" if finding.values else ""
        measured = median_in_words(finding, signed=True)
        if is_share_of_attention(prediction) and finding.values:
            measured += f"; keeps {share_in_words(finding)} of what attention gives"
        line = [says, verdict_cell(judged, finding), agree, measured, power_in_words(finding)]
        if judged.again:
            then = judged.again.get(finding.name)
            line.append(second_set_in_words(finding, then) if then else "")
        lines.append(line)
    table = markdown_table(heads, lines)
    is_risky = any(finding.prediction.at_risk for finding in judged.findings)
    return f"{table}\n\n{ABOUT_RISK}" if is_risky else table


def verdict_cell(judged: JudgedClaim, finding: Finding) -> str:
    """The verdict on a prediction by its seeds; also "open" where they decide it and do not count,
    as `why_open` says; and that it is not trained yet if there are none."""
    if not finding.values:
        return not_trained_yet(finding)
    return f"{finding.verdict}; open" if judged.why_open(finding) else finding.verdict


def second_set_in_words(finding: Finding, repeated: Finding) -> str:
    """The verdict with another instruction set, the seeds that agree there, and the largest
    difference of a seed's value from the first one."""
    difference = largest_seed_difference(finding, repeated)
    agree = f"{repeated.tally.agree} of {repeated.tally.n}"
    return f"{repeated.verdict}, {agree}; differs by {difference:.2g}"


def power_in_words(finding: Finding) -> str:
    """How often a test that may use as many seeds comes to the verdict with which 90 % of all
    seeds agree; and, if not all agreed here, that with which as large a share agrees as here.
    Empty for what counting seeds has not decided."""
    tally = finding.tally
    if not finding.is_decided or finding.prediction.always:
        return ""
    most_seeds = len(finding.seeds)
    with_verdict = tally.agree if finding.verdict == "confirmed" else tally.missed
    if_90_percent = whole_percent(power(most_seeds, 0.9))
    if with_verdict == tally.n:
        return if_90_percent
    return f"{if_90_percent}; {whole_percent(power(most_seeds, with_verdict / tally.n))} as here"


def is_share_of_attention(prediction: Prediction) -> bool:
    """Whether a prediction is about the share s of what attention gives that X keeps: its arms are
    X, none and softmax attention, and it judges X - none + s (none - softmax), so that its weights
    are 1, s - 1 and -s."""
    weights = prediction.weights
    return len(weights) == 3 and weights[0] == 1 and math.isclose(sum(weights), 0, abs_tol=1e-9)


def share_in_words(finding: Finding) -> str:
    """The median share of what attention gives that is kept, with its interval; of too few seeds
    for an interval, with the share of each; or why there is no such number. For a prediction of
    which `is_share_of_attention` is true."""
    share = share_of(*finding.scores.values())  # the arms of a share are X, none, softmax
    if share.why:
        return f"no number ({share.why})"
    if len(share.by_seed) < INTERVAL:
        each = ", ".join(map(whole_percent, sorted(share.by_seed)))
        return f"{whole_percent(share.median)} ({len(share.by_seed)} seeds: {each})"
    low, high = whole_percent(share.low), whole_percent(share.high)
    return f"{whole_percent(share.median)} ({low} to {high})"


def whole_percent(share: float) -> str:
    """A share in percent, without decimals and without a minus before 0."""
    rounded = round(100 * share, 0) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{rounded:.0f} %"


def median_in_words(finding: Finding, *, signed: bool = False) -> str:
    """The median of the values of a finding in its unit, with the interval if there is one, in as
    many digits as the spread allows; empty without values. `signed`: a difference has a + where it
    is positive, so that a higher loss cannot be read as a gain."""
    tally = finding.tally
    prediction = finding.prediction
    sign = "+" if signed and prediction.is_difference else ""
    if math.isnan(tally.median):
        return ""
    if tally.high > tally.low:
        spread = tally.high - tally.low
    else:  # no interval, or one without a width
        spread = max(finding.values) - min(finding.values) or abs(tally.median)
    median_and_unit = f"{rounded_by_spread(tally.median, spread, sign)} {prediction.unit}".strip()
    if math.isnan(tally.low):
        return median_and_unit
    low = rounded_by_spread(tally.low, spread, sign)
    high = rounded_by_spread(tally.high, spread, sign)
    return f"{median_and_unit} ({low} to {high})"


def rounded_by_spread(value: float, spread: float, sign: str = "") -> str:
    """A number as text, rounded to the second digit of its spread: 2.34 with a spread of 0.15;
    with six digits if there is no spread. The sign "+" marks positive numbers, too."""
    if not (math.isfinite(spread) and spread > 0):
        return f"{value:{sign}g}"
    digits = max(0, 1 - math.floor(math.log10(spread)))
    if digits > 6:  # then an exponent is shorter
        return f"{value:{sign}.1e}"
    rounded = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0: no minus before 0
    return f"{rounded:{sign}.{digits}f}"


def arm_table(judged: JudgedClaim) -> str:
    """A table with a line for each arm and length: its overrides, the steps of its runs that did
    not diverge, learning rate, parameters, and the median CPU time of its runs; only the overrides
    of an arm that is not trained yet."""
    rows_of: dict[tuple[str, int | None], list[Row]] = {}
    words_of: dict[str, tuple[str, ...]] = {}
    for finding in judged.findings:
        sides = overrides_and_rates(finding.prediction, judged.claim.arms)
        words_of |= {name: words for name, (words, _) in sides.items()}
        for name, rows in finding.rows.items():
            # Several predictions may use an arm: the first with the most rows of it counts.
            rows_of[name, finding.steps] = max(
                rows_of.get((name, finding.steps), []), rows, key=len
            )
    lines = []
    for (name, _), rows in rows_of.items():
        words = " ".join(f"`{word}`" for word in words_of[name])
        if not rows:
            lines.append([name, words, "", "", "", ""])
            continue
        values = rows[0]["values"]
        rate = rate_override(rows)
        lines.append([
            name,
            words,
            range_in_words(steps_of(rows)),
            rate.partition("=")[2],
            f"{values['parameters']:,}" if "parameters" in values else "",
            f"{median(row['cpu_seconds'] or 0 for row in rows):.0f}",
        ])  # fmt: skip
    heads = ["arm", "overrides", "steps", "learning rate", "parameters", "CPU seconds"]
    return markdown_table(heads, lines)


def steps_of(rows: Sequence[Row]) -> set[int]:
    """The numbers of steps of rows: of those that did not diverge, if there are any."""
    trained = [row for row in rows if "steps" in row["values"]]
    ended = [row for row in trained if row["status"] != "diverged"]
    return {row["values"]["steps"] for row in ended or trained}


def ladders(judged: JudgedClaim) -> str:
    """The section on ladders: the difference at each size, and the slope over all sizes with its
    standard error over seeds; empty if there are none."""
    blocks = []
    for finding in judged.findings:
        if not finding.prediction.sizes or len(finding.values) < 2:  # one has no standard error
            continue
        lines = []
        for (size_name, size), differences in zip(
            finding.prediction.sizes.items(), differences_by_size(finding), strict=True
        ):
            lines.append([size_name, f"{size.parameters:,}", mean_with_error(differences)])
        unit = finding.prediction.unit
        difference = f"difference of {finding.prediction.metric}"
        table = markdown_table(["size", "parameters", difference], lines)
        slope = mean_with_error(finding.values)
        blocks.append(
            f"`{finding.name}`, {len(finding.values)} seeds: for ten times as many parameters the "
            f"difference changes by {slope} {unit}.\n\n{table}"
        )
    about = "Means over seeds, with their standard errors."
    return "\n\n".join(["## Sizes", about, *blocks]) if blocks else ""


def differences_by_size(finding: Finding) -> list[list[float]]:
    """For each size of a ladder, the first arm minus the second of every seed."""
    by_seed = zip(*finding.scores.values(), strict=True)
    differences = [finding.prediction.differences(scores) for scores in by_seed]
    return [list(of_size) for of_size in zip(*differences, strict=True)]


def mean_with_error(values: Sequence[float]) -> str:
    """The mean of at least two values with its standard error, both to the second digit of the
    error."""
    error = stdev(values) / math.sqrt(len(values))
    return f"{rounded_by_spread(fmean(values), error, '+')} ± {rounded_by_spread(error, error)}"


def seed_tables(judged: JudgedClaim) -> str:
    """For each finding that has seeds, a table with a line a seed: the metric of every arm, and
    the value that is judged."""
    blocks = []
    for finding in judged.findings:
        if not finding.values:
            continue
        columns = [*finding.scores.values(), finding.values]
        spreads = [max(column) - min(column) for column in columns if column]
        # All columns have as many digits as the one that spreads least needs.
        spread = min((x for x in spreads if x > 0), default=0.0)
        lines = []
        for seed, *numbers in zip(finding.seeds, *columns, strict=False):
            lines.append([f"{seed}", *(rounded_by_spread(x, spread) for x in numbers)])
        table = markdown_table(["seed", *finding.scores, "judged"], lines)
        blocks.append(f"`{finding.name}`: {finding.prediction.metric}\n\n{table}")
    return "\n\n".join(blocks)


def settings_table(claim: Claim) -> str:
    """A table of the settings that all arms of a claim share: its base, composed with the conf of
    today, a line for each group."""
    config, _ = composed(claim.base, claim.folder.parent)
    lines = []
    for group in ("model", "data", "optim", "trainer"):
        settings = flat(config.settings.plain()[group])
        settings.pop("source", None)  # a digest of own code, which may change after the runs
        if group == "data":
            settings["SHA-256"] = config.data().sha256
        # What is not set is left out, so that a new setting does not change old pages.
        known = [f"{key} {value}" for key, value in settings.items() if value is not None]
        lines.append([group, ", ".join(known)])
    return markdown_table(["group", "settings"], lines)


def block_of_all_claims(published: Sequence[JudgedClaim]) -> str:
    """The generated part of the page of all claims: a table with the sentence, its verdict and
    reach, how many predictions were at risk, and what the first one measured; why the words of
    each verdict are as they are; how likely a verdict is wrong by chance; and what the runs of
    each claim took."""
    lines = []
    reasons = []
    for judged in sorted(published, key=lambda judged: judged.claim.order):
        claim = judged.claim
        name = f"[{claim.folder.name}]({claim.folder.name}/README.md)"
        first = judged.findings[0]
        measured = first.prediction.says
        if not first.values:
            measured += f" It is {not_trained_yet(first)}."
        elif is_share_of_attention(first.prediction):
            measured += f" It keeps {share_in_words(first)}."
        else:
            measured += f" {median_in_words(first, signed=True)}"
        verdict = f"**{short_verdict(judged)}**"
        if claim.withdrawn:
            verdict += f": {claim.withdrawn}"
        reach = reach_line(judged)
        lines.append([name, claim.says, verdict, reach, risk_in_words(judged), measured])
        words = verdict_words(judged)
        reasons.append([name, judged.verdict_of_predictions, words, reasons_for_words(judged)])
    heads = ["claim", "sentence", "verdict", "reach", "at risk", "its first prediction, measured"]
    return "\n\n".join([
        markdown_table(heads, lines),
        f"*At risk*: {ABOUT_AT_RISK}",
        f"## Why the words are as they are\n\n{ABOUT_WORDS}",
        markdown_table(["claim", "by its predictions", "words", "why"], reasons),
        chance_of_errors_in_words(published),
        f"## What the runs took\n\n{ABOUT_HOURS}",
        hours_table(published),
    ])  # fmt: skip


def hours_table(published: Sequence[JudgedClaim]) -> str:
    """A table with a line for each claim, and one for all: the CPU hours that were planned, where
    that was written down; those of its test; and those of all its rows, and of the rows of its
    repetition."""
    lines = []
    sums = [0.0, 0.0, 0.0]
    for judged in sorted(published, key=lambda judged: judged.claim.order):
        claim = judged.claim
        planned = "" if claim.planned_hours is None else f"{claim.planned_hours:.1f}"
        # Several predictions may read one run.
        test = {(*row["overrides"], row["seed"]): row for _, row in judged.test_rows()}
        files = [Rows(claim.folder / file).values() for file in (COMMITTED, COMMITTED_AGAIN)]
        hours = [cpu_hours(rows) for rows in (test.values(), *files)]
        sums = [total + of_claim for total, of_claim in zip(sums, hours, strict=True)]
        lines.append([claim.folder.name, planned, *[f"{number:.1f}" for number in hours]])
    lines.append(["all claims", "", *[f"{number:.1f}" for number in sums]])
    return markdown_table(["claim", "planned", "test", "all", "again"], lines)


def cpu_hours(rows: Iterable[Row]) -> float:
    """The CPU hours of runs, of which those that were not measured count as none."""
    return sum(row["cpu_seconds"] or 0 for row in rows) / 3600


def chance_of_errors_in_words(published: Sequence[JudgedClaim]) -> str:
    """How likely chance alone would decide at least one prediction of all claims that is needed
    and decided by counting seeds, if each seed were as likely to agree as not."""
    chance_of_none = 1.0
    decided = 0
    for judged in published:
        for key, evidence in judged.evidence().items():
            prediction = judged.claim.predictions[key]
            is_decided = prediction.is_needed and evidence.verdict != "open"
            if is_decided and not prediction.always:
                decided += 1
                most_seeds = len(judged.claim.seeds_of(prediction))
                chance_of_none *= 1 - chance_of_wrong_verdict(most_seeds)
    return (
        f"{decided} predictions decide, or are controls. If each seed of each were as likely to "
        f"agree as not, at least one of them would be decided by chance with a probability of "
        f"{1 - chance_of_none:.2f}. That is the worst case: where most seeds are on one side, it "
        "is less."
    )


def figure_of(judged: JudgedClaim) -> str:
    """The figure of a claim as the text of an SVG: as `draw` of its own figure.py makes it, if it
    has one, or with the values of each prediction."""
    folder = judged.claim.folder
    with styled():
        if (folder / "figure.py").exists():
            figure = import_beside(folder, "figure.draw")(judged)
        else:
            figure = draw_findings(judged)
    svg = as_svg(figure)
    # Identifiers are digests of coordinates to their last digit, in which a layout may differ from
    # the same one computed before. In a file of its own, numbers will do.
    identifiers = dict.fromkeys(re.findall(r'id="([mp][0-9a-f]{10})"', svg))
    for number, identifier in enumerate(identifiers):
        svg = svg.replace(identifier, f"{identifier[0]}{number}")
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines())


def drawn_findings(judged: JudgedClaim) -> list[Finding]:
    """The findings that a figure shows: they have values of seeds, and the verdict on the sentence
    needs them (they decide or are controls) or they have several sizes (ladders)."""
    drawn = []
    for each in judged.findings:
        if each.values and (each.prediction.is_needed or each.prediction.sizes):
            drawn.append(each)
    return drawn


def draw_findings(judged: JudgedClaim) -> Figure:
    """A figure with a panel for each finding that is drawn: the value of each seed as a dot on a
    line, with its thresholds; what agrees lies in the shaded range. Ladders are drawn against
    size."""
    drawn = drawn_findings(judged)
    heights = []  # in inches, with room for the further lines of a title
    for each in drawn:
        lines = title_of_panel(each).count("\n")
        heights.append((2.2 if each.prediction.sizes else 0.75) + 0.17 * lines)
    figure = Figure(figsize=(7, 0.9 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(drawn), squeeze=False, height_ratios=heights)[:, 0]
    for axes, finding in zip(panels, drawn, strict=True):
        if finding.prediction.sizes:
            draw_ladder(axes, finding)
            continue
        low, high = finding.prediction.above, finding.prediction.below
        axes.plot(finding.values, [0] * len(finding.values), "o", color=BLUE, alpha=0.6)
        for bound in filter(math.isfinite, {low, high}):
            axes.axvline(bound, color=BLACK, lw=1)
        left, right = axes.get_xlim()  # a bound that is infinite is shaded to the end of the axis
        axes.axvspan(max(low, left), min(high, right), color=GREEN, alpha=0.1)
        axes.set_xlim(left, right)
        axes.set_yticks([])
        axes.tick_params(labelsize=9)
        axes.set_title(title_of_panel(finding), loc="left", fontsize=10)
        axes.set_xlabel(finding.prediction.unit, fontsize=10)
    return figure


def title_of_panel(finding: Finding) -> str:
    """What a finding predicts, and after how many steps, in lines that a figure of 7 inches
    holds; those of a ladder begin farther to the right."""
    title = finding.prediction.says
    if finding.steps:
        title += f" ({finding.steps:,} steps)"
    return textwrap.fill(title, 80 if finding.prediction.sizes else 94)


def draw_ladder(axes: Axes, finding: Finding) -> None:
    """Draw the panel of a ladder: the difference of each seed at each size, against the number of
    parameters, and a line through the means."""
    sizes = [size.parameters for size in finding.prediction.sizes.values()]
    by_size = differences_by_size(finding)
    for parameters, of_size in zip(sizes, by_size, strict=True):
        axes.plot([parameters] * len(of_size), of_size, "o", color=BLUE, alpha=0.6)
    axes.plot(sizes, [fmean(of_size) for of_size in by_size], color=BLUE)
    axes.axhline(0, color=BLACK, lw=1)
    axes.set_xscale("log")
    axes.tick_params(labelsize=9)
    axes.set_title(title_of_panel(finding), loc="left", fontsize=10)
    axes.set_xlabel("parameters", fontsize=10)
    axes.set_ylabel(finding.prediction.unit, fontsize=9)
