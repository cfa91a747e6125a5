"""What a claim came out as, in Markdown: for the terminal, for its page, and for that of all."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from attnlab.claims.claim import PILOTS, Claim
from attnlab.claims.judge import supports
from attnlab.claims.judged_claim import (
    COMMITTED,
    DECIDE,
    Finding,
    JudgedClaim,
    judge_claim,
    judge_files,
    rows_of_findings,
)
from attnlab.claims.markdown import fill_page, markdown_table
from attnlab.claims.rows import Rows
from attnlab.claims.trials import Row, Run
from attnlab.claims.work import composed, import_beside
from attnlab.errors import BadInput
from attnlab.plotting.drawing import BLACK, BLUE, GREEN, as_svg, styled
from attnlab.runs.settings import flat, last_of


def claim_report(
    claim: Claim,
    rows: Mapping[Run, Row],
    again: Mapping[Run, Row] | None = None,
    *,
    pilots: bool = False,
    fresh: bool = False,
) -> str:
    """What came out, for the terminal; with `fresh`, also how far it is from committed rows."""
    if pilots:
        return prediction_table(judge_claim(claim, rows, PILOTS))
    judged = judge_claim(claim, rows, again=again)
    paragraphs = [came_out(judged), processors_in_words(judged), prediction_table(judged)]
    if why := judged.exploratory():
        paragraphs.append(why)
    if fresh:
        paragraphs.append(beside_committed(judged))
    return "\n\n".join(paragraphs)


def beside_committed(judged: JudgedClaim) -> str:
    """How many values are those of the committed rows, and the largest difference."""
    then = judge_claim(judged.claim, Rows(judged.claim.folder / COMMITTED))
    differences = []
    for now, before in zip(judged.findings, then.findings, strict=True):
        for x, y in zip(now.values, before.values, strict=False):
            differences.append(0.0 if x == y else abs(x - y))  # inf - inf would be NaN
    equal = f"{differences.count(0)} of {len(differences)} values are those of the committed rows"
    return f"{equal}; the most different one by {max(differences, default=0):.2g}"


def publish_claims(claims: Sequence[Claim]) -> Iterator[Path]:
    """Write the figures and pages of claims from their committed rows, and the table of all;
    BadInput if rows are not those of a declared test."""
    published = []
    for claim in claims:
        judged = judge_files(claim)
        if why := judged.exploratory():
            raise BadInput(f"{claim.folder.name} cannot be published. {why}")
        published.append(judged)
        figure = claim.folder / "figure.svg"
        figure.write_text(figure_of(judged), encoding="utf-8")
        yield figure
        readme = claim.folder / "README.md"
        fill_page(readme, page_block(judged))
        yield readme
    table = claims[0].folder.parent / "README.md"
    if len(claims) == len(list(table.parent.glob("*/claim.yaml"))):
        fill_page(table, all_claims(published))
        yield table


def page_block(judged: JudgedClaim) -> str:
    """The generated part of a claim's page: what came out, how to repeat it, and the details."""
    claim = judged.claim
    rows = {(*row["overrides"], row["seed"]): row for _, row in judged.test_rows()}
    minutes = max(1, round(sum(row["cpu_seconds"] or 0 for row in rows.values()) / 60))
    return "\n\n".join([
        came_out(judged),
        processors_in_words(judged),
        "![The values of each prediction by seed, and its threshold](figure.svg)",
        f"## Repeat it\n\n`attnlab reproduce {claim.folder.name} --fresh --long` trains all of it "
        f"again and compares: {len(rows)} runs, {minutes} CPU minutes.",
        "## Predictions\n\nHow they are judged: docs/claims.md.\n\n"
        f"{prediction_table(judged)}",
        f"## Arms\n\nAn arm is one side of a comparison.\n\n{arm_table(judged)}",
        f"<details><summary>Every seed</summary>\n\n{seed_tables(judged)}\n\n</details>",
        f"<details><summary>Settings of all arms</summary>\n\n{settings_of(claim)}\n\n</details>",
    ])  # fmt: skip


def came_out(judged: JudgedClaim) -> str:
    """The verdict, and where the sentence is true, false and undecided, in the author's words."""
    where: dict[str, list[str]] = {"True": [], "False": [], "Undecided": []}
    for prediction, verdict in judged.predictions():
        says = prediction.says.rstrip(".")
        if prediction.role == "control" and verdict != "confirmed":
            where["Undecided"].append(f"nothing follows: {says}: {verdict}")
        elif prediction.role in ("for", "against") and verdict == "open":
            where["Undecided"].append(prediction.where or says)
        elif prediction.role in ("for", "against"):
            true = supports(prediction.role, verdict)
            where["True" if true else "False"].append(prediction.where or says)
    lines = [f"**“{judged.claim.says}” {verdict_in_words(judged)}.**", ""]
    for key, conditions in where.items():
        lines += [f"- {key}: {condition}" for condition in conditions]
    return "\n".join(lines)


def verdict_in_words(judged: JudgedClaim) -> str:
    """The verdict on the sentence; for one that does not hold, what was shown instead."""
    if judged.verdict == "does not hold" and judged.claim.otherwise:
        return f"was not found: {judged.claim.otherwise}"
    in_words = {"open": "is undecided", "holds only if": "holds only in part"}
    return in_words.get(judged.verdict, judged.verdict)


def processors_in_words(judged: JudgedClaim) -> str:
    """Whether the verdicts are the same with another instruction set, whose rounding differs."""
    deciding = judged.deciding()
    first = instruction_sets(deciding)
    if not judged.again:
        return (
            f"**One processor.** The runs were made on {first}, and not repeated with another "
            "instruction set, so rounding may decide the verdict."
        )
    second = instruction_sets(judged.again.values())
    changed = []
    for finding in deciding:
        then = judged.again.get(finding.name)
        if then and then.verdict != finding.verdict:
            changed.append(
                f"`{finding.name}` is {finding.verdict} on {first} and {then.verdict} on {second}"
            )
    if changed:
        return f"**Not the same on two processors.** {'; '.join(changed)}. So it is open."
    if len(judged.again) < len(deciding):
        repeated = f"{len(judged.again)} of {len(deciding)} predictions"
        return f"**One processor, in part two.** {repeated} were repeated on {second}: the same."
    return f"**Same on {first} and {second}.** Each prediction that decides was repeated."


def instruction_sets(findings: Iterable[Finding]) -> str:
    """The instruction sets of the rows of findings, or the machine where a row names none."""
    names = set()
    for _, row in rows_of_findings(findings):
        model = row.get("machine", "an unknown machine").partition(", torch")[0]
        names.add(row.get("instruction_set") or f"{model} (instruction set not recorded)")
    return " and ".join(sorted(names)) or "no processor"


def prediction_table(judged: JudgedClaim) -> str:
    """One line a prediction: its sentence, verdict, seeds that agree, and median with interval;
    and the verdict with another instruction set, where its runs were repeated."""
    heads = ["prediction", "verdict", "seeds that agree", "median (95 %)"]
    if judged.again:
        heads.append(f"on {instruction_sets(judged.again.values())}")
    prefixes = {"for": "", "shown": "", "against": "against the sentence: "}
    lines = []
    for finding in judged.findings:
        prediction = finding.prediction
        outcome = finding.outcome
        says = prefixes.get(prediction.role, f"{prediction.role}: ") + prediction.says
        if finding.steps:
            says += f" After {finding.steps:,} steps."
        agree = f"{outcome.yes} of {outcome.n}" if finding.values else ""
        line = [says, finding.verdict, agree, median_in_words(finding)]
        if judged.again:
            then = judged.again.get(finding.name)
            same = f"{then.verdict}, {then.outcome.yes} of {then.outcome.n}" if then else ""
            line.append(same)
        lines.append(line)
    return markdown_table(heads, lines)


def median_in_words(finding: Finding) -> str:
    """The median with its interval; the digits follow the spread."""
    outcome = finding.outcome
    if math.isnan(outcome.median):
        return ""
    if outcome.high > outcome.low:
        spread = outcome.high - outcome.low
    else:
        spread = max(finding.values) - min(finding.values) or abs(outcome.median)
    median_and_unit = f"{in_digits(outcome.median, spread)} {finding.prediction.unit}".strip()
    if math.isnan(outcome.low):
        return median_and_unit
    low, high = in_digits(outcome.low, spread), in_digits(outcome.high, spread)
    return f"{median_and_unit} ({low} to {high})"


def in_digits(value: float, spread: float) -> str:
    """A number with two digits of its spread."""
    if not (math.isfinite(spread) and spread > 0):
        return f"{value:g}"
    digits = max(0, 1 - math.floor(math.log10(spread)))
    return f"{value:.{digits}f}" if digits <= 6 else f"{value:.1e}"


def arm_table(judged: JudgedClaim) -> str:
    """One line an arm and length: what it changes, learning rate, parameters, CPU time."""
    rows_of: dict[tuple[str, int | None], list[Row]] = {}
    for finding in judged.findings:
        for name, rows in finding.rows.items():
            rows_of.setdefault((name, finding.steps), rows)
    lines = []
    for (name, _), rows in rows_of.items():
        values = rows[0]["values"]
        rate = last_of(rows[0]["overrides"]).get("optim.lr", "=")
        lines.append([
            name,
            " ".join(f"`{word}`" for word in judged.claim.arms[name]),
            f"{values['steps']:,}" if "steps" in values else "",
            rate.partition("=")[2],
            f"{values['parameters']:,}" if "parameters" in values else "",
            f"{median(row['cpu_seconds'] or 0 for row in rows):.0f}",
        ])  # fmt: skip
    heads = ["arm", "overrides", "steps", "best rate", "parameters", "CPU seconds"]
    return markdown_table(heads, lines)


def seed_tables(judged: JudgedClaim) -> str:
    """The metric of every arm and the value that is judged, by seed."""
    blocks = []
    for finding in judged.findings:
        columns = [*finding.scores.values(), finding.values]
        spreads = [max(column) - min(column) for column in columns if column]
        spread = min((x for x in spreads if x > 0), default=0.0)
        lines = []
        for seed, *numbers in zip(finding.seeds, *columns, strict=False):
            lines.append([f"{seed}", *(in_digits(x, spread) for x in numbers)])
        table = markdown_table(["seed", *finding.scores, "judged"], lines)
        blocks.append(f"`{finding.name}`: {finding.prediction.metric}\n\n{table}")
    return "\n\n".join(blocks)


def settings_of(claim: Claim) -> str:
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
    """The table of all claims: the sentence, its verdict, and its first prediction."""
    lines = []
    for judged in sorted(published, key=lambda judged: judged.claim.order):
        name = judged.claim.folder.name
        first = judged.findings[0]
        measured = f"{first.prediction.says} {median_in_words(first)}"
        verdict = f"**{verdict_in_words(judged)}**"
        lines.append([f"[{name}]({name}/README.md)", judged.claim.says, verdict, measured])
    return markdown_table(
        ["claim", "sentence", "verdict", "its first prediction, measured"], lines
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


def draw_findings(judged: JudgedClaim) -> Figure:
    """The value of each seed as a dot, beside the threshold of its prediction, for those that
    decide and controls; what agrees lies in the shaded range."""
    drawn = [each for each in judged.findings if each.values and each.prediction.role in DECIDE]
    figure = Figure(figsize=(7, 0.9 + 0.75 * len(drawn)), layout="constrained")
    panels = figure.subplots(len(drawn), squeeze=False)[:, 0]
    for axes, finding in zip(panels, drawn, strict=True):
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
