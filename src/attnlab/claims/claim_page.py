"""What a claim came out as, in Markdown: for the terminal, for its page, and for that of all."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.claims.attempts import Attempt, attempts_in_words, attempts_of, changed_words
from attnlab.claims.claim import Claim, Prediction, overrides_and_rates
from attnlab.claims.elsewhere import RowsByFile, committed_rows
from attnlab.claims.finding import Finding, rows_of_findings
from attnlab.claims.judge import power
from attnlab.claims.judged_claim import JudgedClaim, judge_claim, judge_files
from attnlab.claims.markdown import fill_page, markdown_table
from attnlab.claims.reach import (
    processors_of,
    reach_line,
    risk_in_words,
    verdict_words,
    why_limited,
)
from attnlab.claims.rows import COMMITTED, Rows, refuse_lost_rows
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
    "Thresholds of the others follow pilots, so only those at risk could surprise their author. "
    "Numbers that only documents have cannot be seen."
)
ABOUT_WORDS = (
    "A verdict on trained models names its length, rate or processor unless it has two lengths, "
    "n and 4 n steps, the best rate of each arm for each, and two processors or instruction sets. "
    "It reaches as far as the predictions that it needs: [docs/claims.md](../docs/claims.md)."
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
    """What came out, for the terminal; with `fresh`, also how far it is from committed rows."""
    if pilots:
        return prediction_table(judge_claim(claim, rows, pilots=True))
    judged = judge_claim(claim, rows, again=again, committed=committed)
    paragraphs = [
        came_out(judged),
        reach_paragraph(judged),
        processors_in_words(judged),
        prediction_table(judged),
        others_in_words(judged),
    ]
    if why := judged.why_exploratory() or warning:
        paragraphs.append(why)
    if fresh:
        paragraphs.append(distance_from_committed(judged))
    return "\n\n".join(filter(None, paragraphs))


def distance_from_committed(judged: JudgedClaim) -> str:
    """How many values are those of the committed rows, and the largest difference."""
    then = judge_claim(judged.claim, Rows(judged.claim.folder / COMMITTED))
    differences = []
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
    """Write the figures and pages of claims from their committed rows, and the table of all if all
    are given. Yields each file once it is written; BadInput if rows are not of a declared test."""
    published = []
    committed = committed_rows(claims[0].folder.parent)
    for claim in claims:
        refuse_lost_rows(claim.folder)
        judged = judge_files(claim, committed)
        if why := judged.why_exploratory():
            raise BadInput(f"{claim.folder.name} cannot be published. {why}")
        published.append(judged)
        if drawn_findings(judged):
            figure = claim.folder / "figure.svg"
            figure.write_text(figure_of(judged), encoding="utf-8")
            yield figure
        readme = claim.folder / "README.md"
        rows = Rows(claim.folder / COMMITTED)
        fill_page(readme, page_block(judged, attempts_of(claim, rows)))
        yield readme
    table = claims[0].folder.parent / "README.md"
    are_all = len(claims) == len(list(table.parent.glob("*/claim.yaml")))
    if are_all:
        fill_page(table, all_claims(published))
        yield table


def page_block(judged: JudgedClaim, attempts: Sequence[Attempt] = ()) -> str:
    """The generated part of a claim's page: what came out, how to repeat it, the details, and
    earlier attempts."""
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
        came_out(judged),
        reach_paragraph(judged),
        difference_of_conditions(judged),
        processors_in_words(judged),
        figure if drawn_findings(judged) else "",
        repeat if rows else "",
        f"## Predictions\n\n{ABOUT_PREDICTIONS}\n\n{prediction_table(judged)}",
        others_in_words(judged),
        ladders(judged),
        f"## Arms\n\n{ABOUT_ARMS}\n\n{arm_table(judged)}",
        attempts_in_words(judged, attempts),
        changed_words(judged),
        folded("Every seed", seed_tables(judged)),
        folded("Settings of all arms", settings_table(claim)),
    ]
    return "\n\n".join(filter(None, paragraphs))


def folded(summary: str, text: str) -> str:
    """A part of the page that is shown after a click."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def came_out(judged: JudgedClaim) -> str:
    """The verdict, and where the sentence is true, false and undecided, in the author's words."""
    where: dict[str, list[str]] = {"True": [], "False": [], "Undecided": []}
    for key, evidence in judged.evidence().items():
        prediction = judged.claim.predictions[key]
        says = prediction.says.rstrip(".")
        condition = prediction.where or says
        if evidence.role == "control" and evidence.verdict != "confirmed":
            where["Undecided"].append(f"nothing follows: {says}: {evidence.verdict}")
        elif evidence.is_undecided:
            where["Undecided"].append(condition + doubt_in_words(judged, key))
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


def doubt_in_words(judged: JudgedClaim, key: str) -> str:
    """Why a prediction is open although its rows decide it, in parentheses; or nothing."""
    doubts: dict[str, None] = {}  # in order, each once
    for finding in judged.findings:
        if finding.key == key:
            why = judged.why_open(finding) if finding.values else not_trained(finding)
            doubts |= {why: None} if why else {}
    return f" ({'; '.join(doubts)})" if doubts else ""


def not_trained(finding: Finding) -> str:
    """Says that a prediction has no seed yet, and how many runs come next."""
    return f"not trained yet: {len(finding.missing)} runs come next"


def short_verdict(judged: JudgedClaim) -> str:
    """The verdict on the sentence with its reach; for one that does not hold, what was shown
    instead; and whether it was withdrawn."""
    if judged.claim.withdrawn:
        return f"{judged.verdict}, withdrawn"
    if judged.verdict == "does not hold" and judged.claim.otherwise:
        return f"{verdict_words(judged)}: {judged.claim.otherwise}"
    return verdict_words(judged)


def verdict_in_words(judged: JudgedClaim) -> str:
    """The verdict on the sentence, and why it was withdrawn."""
    why = judged.claim.withdrawn
    return f"{short_verdict(judged)}: {why.rstrip('.')}" if why else short_verdict(judged)


class Conditions(NamedTuple):
    """Two findings of which one says that a sentence is true, the other that it is false."""

    true: Finding
    false: Finding
    apart: set[str]  # in what they differ


def difference_of_conditions(judged: JudgedClaim) -> str:
    """For a sentence that holds in part: in what the nearest true and false conditions differ.

    If that is more than one thing, it was not shown which of them decides.
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
        return f"{said}, and in nothing else{except_rates(a, b)}."
    return f"{said}: in {len(apart)} things, so it was not shown which of them decides."


def except_rates(a: Finding, b: Finding) -> str:
    """Says that the arms of two findings were trained at different rates, each at its best."""
    if not (a.prediction.rates and b.prediction.rates):
        return ""
    for one, other in zip(a.arms, b.arms, strict=False):
        if rate_of(a.rows[one]) != rate_of(b.rows[other]):
            return " but the learning rate, which is the best of each"
    return ""


def rate_of(rows: Sequence[Row]) -> str:
    """The learning rate of an arm, as its overrides have it."""
    return last_of(rows[0]["overrides"]).get("optim.lr", "")


def settings_apart(a: Finding, b: Finding, experiments: Path) -> set[str]:
    """In what the arms of two predictions differ, and what is measured, if that differs."""
    apart = set()
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
    """The line of reach under the verdict."""
    return f"**Reach**: {reach_line(judged)}."


def processors_in_words(judged: JudgedClaim) -> str:
    """Whether the verdicts are the same with another instruction set, whose rounding differs."""
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
    models = {name.partition(" (")[0] for name in first}
    others = {name.partition(" (")[0] for name in second}
    two = "two processors" if models.isdisjoint(others) else "two instruction sets"
    return (
        f"**Same on {two}**, {here} and {there}. Each prediction that decides was repeated with "
        f"the same seeds, whose values differ by at most {largest_differences(judged)}."
    )


def largest_differences(judged: JudgedClaim) -> str:
    """The largest difference of a value between the two instruction sets, in each unit."""
    largest: dict[str, float] = {}
    for finding in judged.needed():
        then = judged.again[finding.name]
        unit = finding.prediction.unit
        largest[unit] = max(largest.get(unit, 0.0), difference_of_sets(finding, then))
    return " and ".join(f"{x:.2g} {unit}".strip() for unit, x in largest.items())


def difference_of_sets(finding: Finding, then: Finding) -> float:
    """The largest difference of the value of a seed between two instruction sets."""
    pairs = zip(finding.values, then.values, strict=False)
    return max(0.0 if x == y else abs(x - y) for x, y in pairs)


def others_in_words(judged: JudgedClaim) -> str:
    """What other claims, and the ranking, make of the same arms; empty if they have none."""
    lines = []
    for finding in judged.findings:
        for name, there in judged.elsewhere.get(finding.name, {}).items():
            agree = f"{there.tally.agree} of {there.tally.n} agree"
            measured = median_in_words(there, signed=True)
            lines.append(f"- `{finding.name}` by the rows of {name}: {agree}; {measured}")
    if not lines:
        return ""
    same = "Others trained the same arms for as many steps, at rates of their own:"
    why = [f"- {name}: {reason}" for name, reason in judged.claim.differs.items()]
    return "\n".join([same, "", *lines, *why])


def prediction_table(judged: JudgedClaim) -> str:
    """One line a prediction: its sentence, verdict, seeds that agree, and median with interval;
    and the verdict with another instruction set, where its runs were repeated."""
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
        if is_share(prediction) and finding.values:
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
    """The verdict on a prediction, and that it is open all the same where there is a doubt."""
    if not finding.values:
        return not_trained(finding)
    return f"{finding.verdict}; open" if judged.why_open(finding) else finding.verdict


def second_set_in_words(finding: Finding, repeated: Finding) -> str:
    """The verdict with another instruction set, and by how much the value of a seed differs at
    most."""
    apart = difference_of_sets(finding, repeated)
    agree = f"{repeated.tally.agree} of {repeated.tally.n}"
    return f"{repeated.verdict}, {agree}; differs by {apart:.2g}"


def power_in_words(finding: Finding) -> str:
    """How often a test of as many seeds confirms what is true for 90 % of them; and, where not all
    agree, for as many as here. Empty for what is not decided by counting."""
    tally = finding.tally
    if not finding.is_decided or finding.prediction.always:
        return ""
    most = len(finding.seeds)
    agree = tally.agree if finding.verdict == "confirmed" else tally.missed
    of_most = whole_percent(power(most, 0.9))
    if agree == tally.n:
        return of_most
    return f"{of_most}; {whole_percent(power(most, agree / tally.n))} as here"


def is_share(prediction: Prediction) -> bool:
    """Whether a prediction is about what X keeps of what attention gives: its arms are X, none and
    softmax attention, and it judges X - none + s (none - softmax)."""
    weights = prediction.weights
    return len(weights) == 3 and weights[0] == 1 and math.isclose(sum(weights), 0, abs_tol=1e-9)


def share_in_words(finding: Finding) -> str:
    """The share of what attention gives with its interval; of fewer than six seeds, which have
    none, the share of each."""
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
    """The median with its interval; the digits follow the spread. `signed`: a difference has its
    sign, so that a loss that is higher cannot be read as a gain."""
    tally = finding.tally
    prediction = finding.prediction
    sign = "+" if signed and prediction.is_difference else ""
    if math.isnan(tally.median):
        return ""
    if tally.high > tally.low:
        spread = tally.high - tally.low
    else:
        spread = max(finding.values) - min(finding.values) or abs(tally.median)
    median_and_unit = f"{in_digits(tally.median, spread, sign)} {prediction.unit}".strip()
    if math.isnan(tally.low):
        return median_and_unit
    low, high = in_digits(tally.low, spread, sign), in_digits(tally.high, spread, sign)
    return f"{median_and_unit} ({low} to {high})"


def in_digits(value: float, spread: float, sign: str = "") -> str:
    """A number with two digits of its spread; the sign "+" also marks positive ones."""
    if not (math.isfinite(spread) and spread > 0):
        return f"{value:{sign}g}"
    digits = max(0, 1 - math.floor(math.log10(spread)))
    if digits > 6:
        return f"{value:{sign}.1e}"
    rounded = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0: no minus before 0
    return f"{rounded:{sign}.{digits}f}"


def arm_table(judged: JudgedClaim) -> str:
    """One line an arm and length: what it changes, learning rate, parameters, CPU time; of one
    that is not trained yet, what it changes alone."""
    rows_of: dict[tuple[str, int | None], list[Row]] = {}
    words_of: dict[str, tuple[str, ...]] = {}
    for finding in judged.findings:
        sides = overrides_and_rates(finding.prediction, judged.claim.arms)
        words_of |= {name: words for name, (words, _) in sides.items()}
        for name, rows in finding.rows.items():
            rows_of[name, finding.steps] = rows_of.get((name, finding.steps)) or rows
    lines = []
    for (name, _), rows in rows_of.items():
        words = " ".join(f"`{word}`" for word in words_of[name])
        if not rows:
            lines.append([name, words, "", "", "", ""])
            continue
        values = rows[0]["values"]
        rate = last_of(rows[0]["overrides"]).get("optim.lr", "=")
        lines.append([
            name,
            words,
            f"{values['steps']:,}" if "steps" in values else "",
            rate.partition("=")[2],
            f"{values['parameters']:,}" if "parameters" in values else "",
            f"{median(row['cpu_seconds'] or 0 for row in rows):.0f}",
        ])  # fmt: skip
    heads = ["arm", "overrides", "steps", "learning rate", "parameters", "CPU seconds"]
    return markdown_table(heads, lines)


def ladders(judged: JudgedClaim) -> str:
    """The section on ladders: the difference at each size, and the slope over all sizes with its
    standard error over seeds; empty if there are none."""
    blocks = []
    for finding in judged.findings:
        if not finding.prediction.sizes or len(finding.values) < 2:
            continue
        lines = []
        for (at, size), of_size in zip(
            finding.prediction.sizes.items(), differences_by_size(finding), strict=True
        ):
            lines.append([at, f"{size.parameters:,}", mean_with_error(of_size)])
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
    """The first arm minus the second of each seed, at each size of a ladder."""
    by_seed = zip(*finding.scores.values(), strict=True)
    differences = [finding.prediction.differences(scores) for scores in by_seed]
    return [list(of_size) for of_size in zip(*differences, strict=True)]


def mean_with_error(values: Sequence[float]) -> str:
    """The mean and its standard error, over at least two values."""
    error = stdev(values) / math.sqrt(len(values))
    return f"{in_digits(fmean(values), error, '+')} ± {in_digits(error, error)}"


def seed_tables(judged: JudgedClaim) -> str:
    """The metric of every arm and the value that is judged, by seed."""
    blocks = []
    for finding in judged.findings:
        if not finding.values:
            continue
        columns = [*finding.scores.values(), finding.values]
        spreads = [max(column) - min(column) for column in columns if column]
        spread = min((x for x in spreads if x > 0), default=0.0)
        lines = []
        for seed, *numbers in zip(finding.seeds, *columns, strict=False):
            lines.append([f"{seed}", *(in_digits(x, spread) for x in numbers)])
        table = markdown_table(["seed", *finding.scores, "judged"], lines)
        blocks.append(f"`{finding.name}`: {finding.prediction.metric}\n\n{table}")
    return "\n\n".join(blocks)


def settings_table(claim: Claim) -> str:
    """The settings that all arms share, as today's conf resolves them."""
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


def all_claims(published: Sequence[JudgedClaim]) -> str:
    """The table of all claims: the sentence, its verdict with its reach, how many of what decides
    was at risk, and its first prediction; then why the words of each are as they are."""
    lines = []
    reasons = []
    for judged in sorted(published, key=lambda judged: judged.claim.order):
        claim = judged.claim
        name = f"[{claim.folder.name}]({claim.folder.name}/README.md)"
        first = judged.findings[0]
        measured = first.prediction.says
        if not first.values:
            measured += f" It is {not_trained(first)}."
        elif is_share(first.prediction):
            measured += f" It keeps {share_in_words(first)}."
        else:
            measured += f" {median_in_words(first, signed=True)}"
        verdict = f"**{short_verdict(judged)}**"
        if claim.withdrawn:
            verdict += f": {claim.withdrawn}"
        reach = reach_line(judged)
        lines.append([name, claim.says, verdict, reach, risk_in_words(judged), measured])
        words = verdict_words(judged)
        reasons.append([name, judged.verdict_of_predictions, words, why_limited(judged)])
    heads = ["claim", "sentence", "verdict", "reach", "at risk", "its first prediction, measured"]
    return "\n\n".join([
        markdown_table(heads, lines),
        f"*At risk*: {ABOUT_AT_RISK}",
        f"## Why the words are as they are\n\n{ABOUT_WORDS}",
        markdown_table(["claim", "by its predictions", "words", "why"], reasons),
        errors_in_words(published),
    ])  # fmt: skip


def errors_in_words(published: Sequence[JudgedClaim]) -> str:
    """How likely any verdict on a prediction is wrong by chance, over all claims."""
    right = 1.0
    decided = 0
    for judged in published:
        for key, evidence in judged.evidence().items():
            prediction = judged.claim.predictions[key]
            is_decided = prediction.is_needed and evidence.verdict != "open"
            if is_decided and not prediction.always:
                decided += 1
                right *= 1 - chance_of_wrong_verdict(len(judged.claim.seeds_of(prediction)))
    return (
        f"{decided} predictions decide, or are controls. If each seed of each were as likely to "
        f"agree as not, at least one of them would be decided by chance with a probability of "
        f"{1 - right:.2f}. That is the worst case: where most seeds are on one side, it is less."
    )


def figure_of(judged: JudgedClaim) -> str:
    """The figure of a claim as SVG: that of its own figure.py, if it has one."""
    folder = judged.claim.folder
    with styled():
        if (folder / "figure.py").exists():
            figure = import_beside(folder, "figure.draw")(judged)
        else:
            figure = draw_findings(judged)
    return "".join(f"{line.rstrip()}\n" for line in as_svg(figure).splitlines())


def drawn_findings(judged: JudgedClaim) -> list[Finding]:
    """The findings that a figure shows: ladders, what decides, and controls."""
    drawn = []
    for each in judged.findings:
        if each.values and (each.prediction.is_needed or each.prediction.sizes):
            drawn.append(each)
    return drawn


def draw_findings(judged: JudgedClaim) -> Figure:
    """The value of each seed as a dot, beside the threshold of its prediction, for those that
    decide and controls; what agrees lies in the shaded range. Ladders are drawn against size."""
    drawn = drawn_findings(judged)
    heights = [2.2 if each.prediction.sizes else 0.75 for each in drawn]
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
        left, right = axes.get_xlim()
        axes.axvspan(max(low, left), min(high, right), color=GREEN, alpha=0.1)
        axes.set_xlim(left, right)
        axes.set_yticks([])
        axes.tick_params(labelsize=9)
        title = finding.prediction.says
        if finding.steps:
            title += f" ({finding.steps:,} steps)"
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel(finding.prediction.unit, fontsize=10)
    return figure


def draw_ladder(axes: Axes, finding: Finding) -> None:
    """The difference of each seed against the parameters, and the mean."""
    sizes = [size.parameters for size in finding.prediction.sizes.values()]
    by_size = differences_by_size(finding)
    for parameters, of_size in zip(sizes, by_size, strict=True):
        axes.plot([parameters] * len(of_size), of_size, "o", color=BLUE, alpha=0.6)
    axes.plot(sizes, [fmean(of_size) for of_size in by_size], color=BLUE)
    axes.axhline(0, color=BLACK, lw=1)
    axes.set_xscale("log")
    axes.tick_params(labelsize=9)
    axes.set_title(finding.prediction.says, loc="left", fontsize=10)
    axes.set_xlabel("parameters", fontsize=10)
    axes.set_ylabel(finding.prediction.unit, fontsize=9)
