"""Fill the verdicts of docs/textbook.md from the rows of the claims.

    python docs/textbook.py

A cell `<!-- claim -->...<!-- / -->` is filled with the verdict on the claim's sentence, and
`<!-- claim.prediction -->...<!-- / -->` with the median of a prediction and its interval.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from attnlab.claims.claims import Part, judge_claim, read_claim
from attnlab.claims.rows import Rows, read_renamed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "textbook.md"
CELL = re.compile(r"<!-- (?P<claim>\w+)(?:\.(?P<prediction>\w+))? -->.*?<!-- / -->")

Judged = Mapping[str, tuple[str, Mapping[str, Part]]]  # claim -> verdict, prediction -> part


def fill(page: str, judged: Judged) -> str:
    """The page with every cell filled; KeyError for a cell of no claim or prediction."""

    def cell(match: re.Match[str]) -> str:
        begin = match[0].partition("-->")[0] + "-->"
        verdict, parts = judged[match["claim"]]
        name = match["prediction"]
        text = f"**{verdict}**" if name is None else numbers(parts[name])
        return f"{begin}{text}<!-- / -->"

    return CELL.sub(cell, page)


def judge_all(experiments: Path) -> Judged:
    """Every claim of a directory, judged by its rows; parts by the name that their page prints."""
    found, renamed = {}, read_renamed(experiments)
    for file in sorted(experiments.glob("*/claim.yaml")):
        rows = Rows(file.with_name("rows.jsonl"), renamed=renamed)
        verdict, parts = judge_claim(read_claim(file), rows)
        found[file.parent.name] = verdict, {part.name: part for part in parts}
    return found


def numbers(part: Part) -> str:
    """The median of a prediction, and its interval where there are at least 6 seeds."""
    outcome = part.outcome
    assert outcome is not None, f"{part.name} has no rows"
    unit = " nats" * (part.prediction.unit == "nats")
    text = f"**{outcome.median:.3g}**{unit}"
    if outcome.low != outcome.low:  # NaN: fewer than 6 seeds have no interval
        return text
    return f"{text} ({outcome.low:.3g} to {outcome.high:.3g})"


if __name__ == "__main__":
    filled = fill(PAGE.read_text(encoding="utf-8"), judge_all(ROOT / "experiments"))
    PAGE.write_text(filled, encoding="utf-8")
    print(f"written   {PAGE}")
