"""The report on claims: one HTML file that opens offline, and the page of each claim."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import jinja2

from attnlab.claims.claim import Trained
from attnlab.claims.conditions import parameters_of
from attnlab.claims.criteria import EXACT, Happens, Proof
from attnlab.claims.declare import check_committed, check_seeds
from attnlab.claims.evaluate import provenance, verdict
from attnlab.claims.judge import family_error
from attnlab.claims.paths import Paths
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.claims.rows import read_published
from attnlab.errors import BadInput
from attnlab.files import read_json, write_atomically, write_json
from attnlab.plotting.drawing import styled, svg
from attnlab.runs.run_directory import now

BEGIN, END = "<!-- verdicts -->", "<!-- /verdicts -->"
IN_README = 3  # claims, by their order
NOTICE = "notice.md"  # what is doubtful about a published verdict; optional
SENTENCE = "sentence.md"  # the result in a sentence for the README; optional
LARGEST_FIGURE = 200_000  # bytes, so that the repository stays small


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
            write_atomically(paths.results / "figures" / f"{name}.svg", figures[name].encode())
    found = {"family": family, "figures": figures, "provenance": ran, "budget": paths.budget}
    page = _templates().get_template("report.html").render(found, written=now())
    write_atomically(paths.results / "report.html", page.encode())


def publish(family: Sequence[Evidence], paths: Paths, readme: Path) -> list[Path]:
    """Write README.md, figure.svg and verdict.json beside each claim.py, and the tables of claims.

    In the project's README, only the text between the two marks is replaced. A new version of a
    claim removes the notice about the old one. Returns the files.
    Raises BadInput if a claim is exploratory, its declaration was committed after its runs, a
    figure is too large, or the README lacks the marks.
    """
    for evidence in family:
        name = evidence.claim.name
        directory = paths.experiments / name
        if evidence.exploratory:
            raise BadInput(
                f"{name} cannot be published: {evidence.exploratory}; declare it "
                f"with attnlab reproduce {name} --declare, commit the file, and run the claim"
            )
        published = read_published(directory).get("rows", {})
        new = [row for id_, row in evidence.rows.items() if id_ not in published]
        check_committed(directory / "declared.json", new)
        check_seeds(evidence.claim, directory, "rows-v*.jsonl")
    written = []
    for evidence in family:
        name = evidence.claim.name
        directory, pages = paths.experiments / name, {}
        if read_published(directory).get("version", 0) < evidence.version:
            (directory / NOTICE).unlink(missing_ok=True)
        if (drawn := paths.results / "figures" / f"{name}.svg").exists():
            pages["figure.svg"] = drawn.read_bytes()
            if len(pages["figure.svg"]) > LARGEST_FIGURE:
                raise BadInput(f"{drawn} is larger than {LARGEST_FIGURE:,} bytes")
        pages["README.md"] = _claim_page(evidence, directory, figure=drawn.exists()).encode()
        for file, content in pages.items():
            write_atomically(directory / file, content)
        row = {"order": evidence.claim.order} | headline(evidence)
        digests = {id_: row["digest"] for id_, row in sorted(evidence.rows.items())}
        write_json(directory / "verdict.json", verdict(evidence) | {"row": row, "rows": digests})
        written += [directory / file for file in (*pages, "verdict.json")]
    return written + write_tables(paths.experiments, readme)


def read_notice(directory: Path) -> str:
    """The notice about a published verdict, in one line; empty if there is none."""
    file = directory / NOTICE
    return " ".join(file.read_text(encoding="utf-8").split()) if file.exists() else ""


def read_sentence(directory: Path, published: Mapping[str, Any]) -> str:
    """The result in one sentence, from sentence.md with numbers of verdict.json; without the file,
    the main prediction with its numbers.

    In the file, `{loss[median]:.2f}` is an entry of a prediction, and `{loss[causal]:.2f}` the
    median score of an arm.
    Raises BadInput for a number that was not published.
    """
    file, row = directory / SENTENCE, published["row"]
    if not file.exists():
        return f"{row['says']} Measured: {row['measured']}, {row['n']} seeds."
    numbers = {
        name: prediction
        | {arm: median(map(float, x)) for arm, x in prediction["scores"].items() if x}
        for name, prediction in published["predictions"].items()
    }
    try:
        return " ".join(file.read_text(encoding="utf-8").split()).format(**numbers)
    except (KeyError, ValueError) as error:
        raise BadInput(f"{file} names a number that verdict.json does not have: {error}") from None


def _claim_page(evidence: Evidence, directory: Path, *, figure: bool) -> str:
    name, declared = evidence.claim.name, read_json(directory / "declared.json")
    conf = f"--config-dir experiments/{name}/conf " if (directory / "conf").is_dir() else ""
    found = {"evidence": evidence, "declared": declared, "figure": figure}
    found |= {"provenance": provenance([evidence]), "conf": conf}
    found |= {"notice": read_notice(directory), "arms": _arms(evidence, declared)}
    page = _templates().get_template("claim.md").render(found)
    return "\n".join(line.rstrip() for line in page.strip().splitlines()) + "\n"


def _arms(evidence: Evidence, declared: dict[str, Any]) -> list[dict[str, Any]]:
    """What the arms of judged predictions cost, and their losses in the pilots by rate."""
    table = {}
    for name, result in evidence.found.items():
        prediction = evidence.claim.prediction(name)
        rows = {arm: rows for arm, rows in result.rows.items() if arm and rows}
        for arm, of_arm in rows.items() if prediction.role != "shown" else ():
            content = declared["declaration"]
            settings = content["settings"] | content["arms"][arm]["settings"]
            choice = prediction.chosen.get(arm)
            pilots = choice.losses.items() if choice else ()
            table[arm] = {
                "arm": arm,
                "learning rate": settings.get("optim.lr", ""),
                "steps": settings.get("trainer.max_steps", ""),
                "parameters": f"{parameters_of(of_arm[0]):,}",
                "CPU seconds a run": _cpu_seconds(of_arm),
                "pilots: loss by rate": ", ".join(f"{rate:g}: {x:.3f}" for rate, x in pilots),
            }
    return list(table.values())


def _cpu_seconds(rows: list[dict[str, Any]]) -> str:
    """The median; empty for rows that are older than its record."""
    known = [float(row["cpu_seconds"]) for row in rows if row.get("cpu_seconds")]
    return f"{median(known):.0f}" if known else ""


def headline(evidence: Evidence) -> dict[str, str]:
    """The verdict with its settings, and the prediction that represents a claim, as Markdown."""
    result = evidence.headline
    label, colon, settings = evidence.line.partition(": ")
    line = settings if colon and label.lower() == evidence.verdict else evidence.line
    words = f"**{evidence.verdict}**: {line} {evidence.tested}".strip()
    row = {"verdict": words, "says": result.prediction.says}
    outcome, criterion = result.outcome, result.prediction.criterion
    if not result.values:
        return row | {"measured": "not run yet", "n": ""}
    if outcome is None:
        return row | {"measured": result.measured, "n": "shown"}
    row["n"] = f"{outcome.yes} of {outcome.n}"
    if isinstance(criterion, EXACT):
        return row | {"measured": criterion.wording if outcome.yes == outcome.n else "no"}
    if isinstance(criterion, Happens | Proof):
        share = _share(outcome.yes, outcome.n)
        return row | {"measured": f"{criterion.wording} ({share} of seeds)"}
    return row | {"measured": result.measured}


def _share(successes: int, n: int) -> str:
    """Exact 95 % interval of a proportion (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest  # takes half a second to import

    low, high = binomtest(successes, n).proportion_ci(method="exact")
    return f"{low:.0%} to {high:.0%}"


def write_tables(experiments: Path, readme: Path) -> list[Path]:
    """Write the table of all published claims to a page, and that of the first ones to the README;
    BadInput if the README lacks the marks around its table."""
    published = {
        file.parent.name: (content := read_json(file))
        | {"notice": read_notice(file.parent), "sentence": read_sentence(file.parent, content)}
        for file in experiments.glob("*/verdict.json")
    }
    rows = sorted(published.items(), key=lambda item: (item[1]["row"]["order"], item[0]))
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise BadInput(f"{readme} must contain {BEGIN} and {END} once, around the table")
    table = _templates().get_template("verdicts.md").render(rows=rows, shown=IN_README).strip()
    write_atomically(readme, f"{before}{BEGIN}\n{table}\n{END}{after}".encode())
    page, error = experiments / "README.md", family_error(experiments)
    text = _templates().get_template("all_claims.md").render(rows=rows, error=error)
    write_atomically(page, text.encode())
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
    environment.filters |= {"number": number, "cell": _cell, "changes": _changes}
    environment.globals |= {"seeds_table": seeds_table, "diverged": _diverged}
    return environment


def seeds_table(result: PredictionResult) -> list[dict[str, Any]]:
    """One row per arm: n, mean of the finite scores, the score of every seed, diverged runs."""
    assert isinstance(result.prediction, Trained)
    return [
        {"arm": arm.name, "overrides": arm.overrides, "n": len(scores), "scores": scores}
        | {"mean": fmean(finite) if (finite := [*filter(math.isfinite, scores)]) else math.nan}
        | {"diverged": result.diverged[arm.name]}
        for arm in result.prediction.arms
        if (scores := result.scores.get(arm.name))
    ]


def _diverged(result: PredictionResult) -> str:
    """How many runs of each arm diverged, with an exact interval for the share."""
    return "; ".join(
        f"{count} of {n} diverged in {arm} ({_share(count, n)})"
        for arm, count in result.diverged.items()
        if count and (n := len(result.rows[arm]))
    )


def number(value: Any) -> str:
    """A number for a table: four decimals, or three significant digits if it is small or large."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def _changes(lines: Sequence[str]) -> str:
    """What changed since the last version; declared.json has each setting, list, and digest."""
    # Early declarations list the settings of a new prediction instead of its name.
    lines = [re.sub(r"^predictions\.(\w+)\.", r"prediction \1: ", line) for line in lines]
    new = [x.partition(": ")[0] for x in lines if ": says: absent -> " in x]
    of_arms = {x.partition(": ")[0]: ": " in x for x in lines if x.startswith("arm ")}
    arms = Counter("with other settings" if x else arm.split()[-1] for arm, x in of_arms.items())
    apart = ("arm ", "code.", *(f"{prediction}: " for prediction in new))
    parts = [re.sub(r": \[.{99,}", " changed", x) for x in lines if not x.startswith(apart)]
    parts += [f"{x} added" for x in new] + [f"arms {how}: {n}" for how, n in arms.items()]
    return "; ".join(parts + ["code"] * any(x.startswith("code.") for x in lines))


def _cell(text: object) -> str:
    """Text for one cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")
