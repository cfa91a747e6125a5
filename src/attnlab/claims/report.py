"""The report on claims: one HTML file that opens offline, and the page of each claim."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2

from attnlab.claims.claim import Trained
from attnlab.claims.criteria import EXACT, Happens, Proof
from attnlab.claims.declare import check_committed
from attnlab.claims.evaluate import provenance, verdict
from attnlab.claims.paths import Paths
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.errors import BadInput
from attnlab.files import read_json, write_atomically, write_json
from attnlab.plotting.drawing import styled, svg
from attnlab.training.run_directory import now

BEGIN, END = "<!-- verdicts -->", "<!-- /verdicts -->"
IN_README = 3  # claims, by their order
LARGEST_FIGURE = 200_000  # bytes; what a repository should hold


def write_report(family: Sequence[Evidence], paths: Paths) -> None:
    """Write verdicts.json, every claim's figure, and report.html."""
    verdicts = {evidence.claim.name: verdict(evidence) for evidence in family}
    ran = provenance(family)
    content = {"budget": paths.budget, "claims": verdicts, "runs": ran}
    write_json(paths.results / "verdicts.json", content | {"times": {"written": now()}})
    figures = {}
    for evidence in family:
        name, draw = evidence.claim.name, evidence.claim.figure
        if draw is not None and any(result.values for result in evidence.found.values()):
            with styled():
                figures[name] = svg(draw(evidence), name)
            write_atomically(_figure(paths, name), figures[name].encode())
    found = {"family": family, "figures": figures, "provenance": ran, "budget": paths.budget}
    page = _templates().get_template("report.html").render(found, written=now())
    write_atomically(paths.results / "report.html", page.encode())


def _figure(paths: Paths, claim: str) -> Path:
    return paths.results / "figures" / f"{claim}.svg"


def publish(family: Sequence[Evidence], paths: Paths, readme: Path) -> list[Path]:
    """Write README.md, figure.svg and verdict.json beside each claim.py, and the tables of claims.

    In the project's README, only the block between the two marks is replaced. Returns what was
    written. Raises BadInput if a claim was changed after it was declared, or run before that was
    committed, a figure is too large, or the README lacks the marks.
    """
    for evidence in family:
        name = evidence.claim.name
        if evidence.exploratory:
            raise BadInput(
                f"{name} cannot be published: {evidence.exploratory}; declare it "
                f"with attnlab reproduce {name} --declare, commit, and run it"
            )
        rows = [row for result in evidence.found.values() for row in result.all_rows]
        commits = {(row.get("git") or {}).get("commit") for row in rows}
        check_committed(paths.experiments / name / "declared.json", commits)
    written = []
    for evidence in family:
        name = evidence.claim.name
        directory, drawn = paths.experiments / name, _figure(paths, name)
        pages = {}
        if drawn.exists():
            pages["figure.svg"] = drawn.read_bytes()
            if len(pages["figure.svg"]) > LARGEST_FIGURE:
                raise BadInput(f"{drawn} is larger than {LARGEST_FIGURE:,} bytes")
        told = {"evidence": evidence, "figure": drawn.exists()}
        told["declared"] = read_json(directory / "declared.json")
        told["provenance"] = provenance([evidence])
        page = _templates().get_template("claim.md").render(told)
        lines = [line.rstrip() for line in page.strip().splitlines()]
        pages["README.md"] = ("\n".join(lines) + "\n").encode()
        for file, content in pages.items():
            write_atomically(directory / file, content)
        row = {"order": evidence.claim.order} | headline(evidence)
        write_json(directory / "verdict.json", verdict(evidence) | {"row": row})
        written += [directory / file for file in (*pages, "verdict.json")]
    return written + write_tables(paths.experiments, readme)


def headline(evidence: Evidence) -> dict[str, str]:
    """The verdict with its settings, and the prediction that stands for a claim, as Markdown."""
    result = evidence.headline
    label, colon, settings = evidence.line.partition(": ")
    told = settings if colon and label.lower() == evidence.verdict else evidence.line
    row = {"verdict": f"**{evidence.verdict}**: {told}", "says": result.prediction.says}
    outcome, criterion = result.outcome, result.prediction.criterion
    if outcome is None:
        return row | {"measured": "not run yet", "n": ""}
    row["n"] = f"{outcome.yes} of {outcome.n}"
    if isinstance(criterion, EXACT):
        return row | {"measured": criterion.wording if outcome.verdict == "confirmed" else "no"}
    if isinstance(criterion, Happens | Proof):
        share = _share(outcome.yes, max(outcome.n, outcome.yes, 1))
        return row | {"measured": f"{criterion.wording} ({share} of seeds)"}
    effect = f"{outcome.median:.4g} {criterion.unit}".strip()
    return row | {"measured": f"{effect} ({outcome.low:.4g} to {outcome.high:.4g})"}


def _share(successes: int, n: int) -> str:
    """Exact 95 % interval of a proportion (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest  # takes half a second to import

    low, high = binomtest(successes, n).proportion_ci(method="exact")
    return f"{low:.0%} to {high:.0%}"


def write_tables(experiments: Path, readme: Path) -> list[Path]:
    """Write the published verdicts of all claims to a page, and of the first ones to the README;
    BadInput if that lacks the marks between which its table stands."""
    published = {file.parent.name: read_json(file) for file in experiments.glob("*/verdict.json")}
    rows = sorted(published.items(), key=lambda item: (item[1]["row"]["order"], item[0]))
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise BadInput(f"{readme} must hold {BEGIN} and {END} once; the table goes between them")
    table = _templates().get_template("verdicts.md").render(rows=rows, shown=IN_README).strip()
    write_atomically(readme, f"{before}{BEGIN}\n{table}\n{END}{after}".encode())
    page = experiments / "README.md"
    write_atomically(page, _templates().get_template("all_claims.md").render(rows=rows).encode())
    return [readme, page]


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnlab.claims"),
        autoescape=jinja2.select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": number, "cell": _cell}
    environment.globals |= {"seeds_table": seeds_table, "diverged": _diverged}
    return environment


def seeds_table(result: PredictionResult) -> list[dict[str, Any]]:
    """One row per arm: n, mean of the finite scores, every seed's score, how many diverged."""
    assert isinstance(result.prediction, Trained)
    return [
        {"arm": arm.name, "overrides": arm.overrides, "n": len(scores), "scores": scores}
        | {"mean": fmean(finite) if (finite := [*filter(math.isfinite, scores)]) else math.nan}
        | {"diverged": result.diverged[arm.name]}
        for arm in result.prediction.arms
        if (scores := result.scores.get(arm.name))
    ]


def _diverged(result: PredictionResult) -> str:
    """How many runs of each arm diverged, with the exact interval of the share."""
    return "; ".join(
        f"{count} of {n} diverged in {arm} ({_share(count, n)})"
        for arm, count in result.diverged.items()
        if count and (n := len(result.rows[arm]))
    )


def number(value: Any) -> str:
    """A number for a table: four digits, or as many as a small one needs."""
    if isinstance(value, int) or not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def _cell(text: object) -> str:
    """Text that cannot end a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")
