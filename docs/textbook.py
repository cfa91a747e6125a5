"""Fill the verdicts of docs/textbook.md from the published claims.

    python docs/textbook.py

A cell `<!-- claim -->...<!-- / -->` is filled with the verdict on the claim's sentence, and
`<!-- claim.prediction -->...<!-- / -->` with the median of a prediction and its interval. Both
come from experiments/<claim>/verdict.json, which `attnlab reproduce --publish` writes. If there is
a notice about a verdict, experiments/<claim>/notice.md, it follows the verdict.
"""

import json
import re
from pathlib import Path
from typing import Any

from attnlab.claims.report import read_notice

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "textbook.md"
CELL = re.compile(r"<!-- (?P<claim>\w+)(?:\.(?P<prediction>\w+))? -->.*?<!-- / -->")
NOT_PUBLISHED = "not yet published"


def fill(page: str, published: dict[str, Any]) -> str:
    """Return the page with every cell filled.

    Args:
        page: Markdown.
        published: claim -> content of its verdict.json; the cells of other claims say that they
            are not yet published.
    """

    def cell(match: re.Match[str]) -> str:
        begin = match[0].partition("-->")[0] + "-->"
        content = published.get(match["claim"])
        if content is None:
            text = f"*{NOT_PUBLISHED}*"
        elif match["prediction"] is None:
            notice = content["notice"]
            text = f"**{content['verdict']}**"
            text += f". {content['tested']}" if content["tested"] else ""
            text += f" **In doubt**: {notice}" if notice else ""
        else:
            text = _numbers(content["predictions"].get(match["prediction"], {}))
        return f"{begin}{text}<!-- / -->"

    return CELL.sub(cell, page)


def cells(page: str) -> list[tuple[str, str | None]]:
    """Claim and prediction of every cell; the prediction is None in a cell for a verdict."""
    return [(match["claim"], match["prediction"]) for match in CELL.finditer(page)]


def read_published(experiments: Path) -> dict[str, Any]:
    """The published verdicts, by claim, without verdicts from before there were declarations."""
    found = {
        file.parent.name: json.loads(file.read_text(encoding="utf-8"))
        | {"notice": read_notice(file.parent)}
        for file in sorted(experiments.glob("*/verdict.json"))
    }
    return {name: content for name, content in found.items() if "predictions" in content}


def _numbers(prediction: dict[str, Any]) -> str:
    if prediction.get("median") is None:
        return f"*{NOT_PUBLISHED}*"
    unit = prediction["predicted"].partition(" nats")[1]
    text = f"**{float(prediction['median']):.3g}**{unit}"
    if prediction["low"] is None:  # fewer than 6 seeds have no interval
        return text
    return f"{text} ({float(prediction['low']):.3g} to {float(prediction['high']):.3g})"


if __name__ == "__main__":
    filled = fill(PAGE.read_text(encoding="utf-8"), read_published(ROOT / "experiments"))
    PAGE.write_text(filled, encoding="utf-8")
    print(f"written   {PAGE}")
