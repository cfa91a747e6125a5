"""The report on claims: one HTML file that opens offline, and the README of each claim."""

import hashlib
import importlib.resources
import json
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from attnlab.claims.claim import Arm, Part, Trained
from attnlab.claims.collect import provenance
from attnlab.claims.evidence import Evidence, Found
from attnlab.claims.paths import Places
from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting import drawing
from attnlab.plotting.drawing import styled, svg
from attnlab.training.run_directory import now

BEGIN, END = "<!-- verdicts -->", "<!-- /verdicts -->"
LARGEST_FIGURE = 200_000  # bytes; what a repository should hold
SENTENCES = {
    "holds": "holds as tested",
    "fails": "does not hold as tested",
    "depends": "true here, false there",
    "open": "open",
}


def write_figures(family: Sequence[Evidence], places: Places) -> dict[str, str]:
    """Draw every claim's figure.

    Returns:
        claim -> SVG text, written to the folder `figures` too; nothing where there is no figure.
    """
    figures = {}
    for evidence in family:
        draw = evidence.claim.figure
        if draw is None or not any(found.values for found in evidence.found.values()):
            continue
        file, key = places.figure(evidence.claim.name), f"<!-- {_drawn_from(evidence, places)} -->"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if not text.endswith(key):
            with styled():
                text = svg(draw(evidence), evidence.claim.name) + key
            write_atomically(file, text.encode())
        figures[evidence.claim.name] = text
    return figures


def _drawn_from(evidence: Evidence, places: Places) -> str:
    """A digest of the rows and of the code that a figure is drawn from; drawing takes seconds."""
    rows = {name: found.rows for name, found in evidence.found.items()}
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode())
    for file in (places.claim_file(evidence.claim.name), Path(drawing.__file__)):
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()


def write_report(family: Sequence[Evidence], figures: Mapping[str, str], places: Places) -> None:
    """Write report.html."""
    content = _template("report.html").render(
        budget=places.budget,
        family=family,
        figures=figures,
        provenance=provenance(family),
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        written=now(),
    )
    write_atomically(places.report, content.encode())


def publish(family: Sequence[Evidence], places: Places, readme: Path) -> list[Path]:
    """Write README.md and figure.svg beside each claim.py, and the table into the README.

    Args:
        family: judged claims.
        places: whose budget's figures are taken.
        readme: the project's; the block between the two marks is replaced, nothing else.

    Returns:
        what was written.

    Raises:
        BadInput: a figure is too large, or the README lacks the marks.
    """
    written = []
    for evidence in family:
        folder = places.experiments / evidence.claim.name
        drawn = places.figure(evidence.claim.name)
        if drawn.exists():
            content = drawn.read_bytes()
            if len(content) > LARGEST_FIGURE:
                raise BadInput(f"{drawn} has {len(content):,} bytes, at most 200,000 are wanted")
            write_atomically(folder / "figure.svg", content)
            written.append(folder / "figure.svg")
        page = _template("claim.md").render(
            evidence=evidence,
            budget=places.budget,
            figure=drawn.exists(),
            provenance=provenance([evidence]),
        )
        lines = [line.rstrip() for line in page.strip().splitlines()]
        write_atomically(folder / "README.md", ("\n".join(lines) + "\n").encode())
        written.append(folder / "README.md")
    _replace_block(readme, _template("verdicts.md").render(family=family, budget=places.budget))
    return [*written, readme]


def _replace_block(file: Path, table: str) -> None:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    block = f"{BEGIN}\n{table.strip()}\n{END}"
    changed, count = re.subn(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL
    )
    if count != 1:
        raise BadInput(f"{file} must hold {BEGIN} and {END} once; the verdicts go between them")
    write_atomically(file, changed.encode())


def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=name.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = number
    environment.filters["cell"] = _cell
    environment.globals["arms"] = arms
    environment.globals["table"] = table
    environment.globals["shown"] = shown
    environment.globals["extra"] = extra
    environment.globals["sentences"] = SENTENCES
    return environment.get_template(name)


def _source(name: str) -> str:
    folder = importlib.resources.files("attnlab.claims") / "templates"
    return (folder / name).read_text(encoding="utf-8")


def shown(found: Found) -> str:
    """A part's verdict in a word."""
    if found.outcome is None:
        return "failed" if found.failed else "not judged"
    return str(found.outcome.verdict) if found.part.counts else "shown only"


def arms(part: Part) -> Sequence[Arm]:
    """What a part trains; nothing where it measures."""
    return part.arms if isinstance(part, Trained) else ()


def table(found: Found) -> list[dict[str, Any]]:
    """One row an arm: n, mean, every seed's score, and how many diverged."""
    diverged = found.diverged
    return [
        {
            "arm": arm,
            "n": len(scores),
            "mean": sum(scores) / len(scores),
            "scores": scores,
            "diverged": diverged[arm],
        }
        for arm, scores in found.scores.items()
    ]


def extra(evidence: Evidence) -> list[dict[str, Any]]:
    """The claim's own table, if it has one."""
    make = evidence.claim.table
    return [dict(row) for row in make(evidence)] if make is not None else []


def number(value: Any) -> str:
    """A number for a table: four digits, or as many as a small one needs."""
    if isinstance(value, int) or not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def _cell(text: str) -> str:
    """Text that cannot end a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")
