"""The report on claims: one HTML file that opens offline, and the page of each claim."""

import importlib.resources
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from attnlab.claims.criteria import EXACT, Happens, Proof
from attnlab.claims.declare import check_committed
from attnlab.claims.evaluate import all_rows, provenance, verdict
from attnlab.claims.paths import Paths
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.errors import BadInput
from attnlab.files import read_json, write_atomically, write_json
from attnlab.plotting.drawing import styled, svg
from attnlab.training.run_directory import now

BEGIN, END = "<!-- verdicts -->", "<!-- /verdicts -->"
LARGEST_FIGURE = 200_000  # bytes; what a repository should hold


def write_figures(family: Sequence[Evidence], paths: Paths) -> dict[str, str]:
    """Draw every claim's figure: claim -> SVG text, also written to the directory `figures`."""
    figures = {}
    for evidence in family:
        name, draw = evidence.claim.name, evidence.claim.figure
        if draw is not None and any(result.values for result in evidence.found.values()):
            with styled():
                figures[name] = svg(draw(evidence), name)
            write_atomically(paths.figure(name), figures[name].encode())
    return figures


def write_report(family: Sequence[Evidence], figures: Mapping[str, str], paths: Paths) -> None:
    """Write report.html."""
    found = {"family": family, "figures": figures, "provenance": provenance(family)}
    page = _template("report.html").render(budget=paths.budget, written=now(), **found)
    write_atomically(paths.report, page.encode())


def publish(family: Sequence[Evidence], paths: Paths, readme: Path) -> list[Path]:
    """Write README.md, figure.svg and verdict.json beside each claim.py, and the README's table.

    In the README, only the block between the two marks is replaced. Returns what was written.

    Raises:
        BadInput: a claim was changed after it was declared, or run before that was committed; a
            figure is too large, or the README lacks the marks.
    """
    for evidence in family:
        if evidence.exploratory:
            raise BadInput(
                f"{evidence.claim.name} cannot be published: {evidence.exploratory}; declare it "
                f"with attnlab reproduce {evidence.claim.name} --declare, commit, and run it"
            )
        commits = {(row.get("git") or {}).get("commit") for row in all_rows([evidence])}
        check_committed(paths.declared(evidence.claim.name), commits)
    written = []
    for evidence in family:
        name = evidence.claim.name
        directory, drawn = paths.experiments / name, paths.figure(name)
        if drawn.exists():
            content = drawn.read_bytes()
            if len(content) > LARGEST_FIGURE:
                raise BadInput(f"{drawn} has {len(content):,} bytes; at most 200,000 are allowed")
            write_atomically(directory / "figure.svg", content)
            written.append(directory / "figure.svg")
        page = _template("claim.md").render(
            evidence=evidence,
            figure=drawn.exists(),
            declared=read_json(paths.declared(name)),
            provenance=provenance([evidence]),
        )
        lines = [line.rstrip() for line in page.strip().splitlines()]
        write_atomically(directory / "README.md", ("\n".join(lines) + "\n").encode())
        row = {"order": evidence.claim.order} | headline(evidence)
        write_json(paths.published(name), verdict(evidence) | {"row": row})
        written += [directory / "README.md", paths.published(name)]
    _write_table(paths, readme)
    return [*written, readme]


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
        low, high = _share(outcome.yes, max(outcome.n, outcome.yes, 1))
        return row | {"measured": f"{criterion.wording} ({low:.0%} to {high:.0%} of seeds)"}
    effect = f"{outcome.median:.4g} {criterion.unit}".strip()
    return row | {"measured": f"{effect} ({outcome.low:.4g} to {outcome.high:.4g})"}


def _share(successes: int, n: int) -> tuple[float, float]:
    """Exact 95 % interval of a proportion (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest  # takes half a second to import

    interval = binomtest(successes, n).proportion_ci(method="exact")
    return float(interval.low), float(interval.high)


def _write_table(paths: Paths, readme: Path) -> None:
    """Replace the table in the README by the published verdicts of all claims."""
    published = {
        file.parent.name: read_json(file) for file in paths.experiments.glob("*/verdict.json")
    }
    rows = sorted(
        ((name, content) for name, content in published.items() if "row" in content),
        key=lambda item: (item[1]["row"]["order"], item[0]),
    )
    block = f"{BEGIN}\n{_template('verdicts.md').render(rows=rows).strip()}\n{END}"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    changed, count = re.subn(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL
    )
    if count != 1:
        raise BadInput(f"{readme} must hold {BEGIN} and {END} once; the table goes between them")
    write_atomically(readme, changed.encode())


def _template(name: str) -> jinja2.Template:
    templates = importlib.resources.files("attnlab.claims") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda each: (templates / each).read_text(encoding="utf-8")),
        autoescape=name.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": number, "cell": _cell}
    environment.globals |= {"seeds_table": seeds_table, "diverged": _diverged}
    return environment.get_template(name)


def seeds_table(result: PredictionResult) -> list[dict[str, Any]]:
    """One row per arm: n, mean of the finite scores, every seed's score, how many diverged."""
    overrides = {arm.name: arm.overrides for arm in getattr(result.prediction, "arms", ())}
    rows = []
    for arm, scores in result.scores.items():
        finite = [score for score in scores if math.isfinite(score)]
        row = {"arm": arm, "overrides": overrides.get(arm, ()), "n": len(scores)}
        row |= {"mean": sum(finite) / len(finite) if finite else math.nan}
        rows.append(row | {"scores": scores, "diverged": result.diverged[arm]})
    return rows


def _diverged(result: PredictionResult) -> str:
    """How many runs of each arm diverged, with the exact interval of the share."""
    told = []
    for arm, count in result.diverged.items():
        if count:
            n = len(result.rows[arm])
            low, high = _share(count, n)
            told.append(f"{count} of {n} diverged in {arm} ({low:.0%} to {high:.0%})")
    return "; ".join(told)


def number(value: Any) -> str:
    """A number for a table: four digits, or as many as a small one needs."""
    if isinstance(value, int) or not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def _cell(text: object) -> str:
    """Text that cannot end a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")
