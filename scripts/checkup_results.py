"""Write docs/checkup-results.md: what the checkup says of each model of attncheck/tests.

python scripts/checkup_results.py   # some minutes
"""

import re
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/checkup-results.md"
HEAD = """# What the checkup finds

Small models with a planted or reported fault, repaired versions of them, and other healthy models:
the tables of `attncheck/tests/examined`, judged by `python scripts/checkup_results.py`. A link
leads to the report of the fault or its repair.

{total} models, all judged correctly.

## Faults

| what the checkup says | models |
|---|---|
{fault}

## Healthy, with a remark

| what the checkup says | models |
|---|---|
{remark}

## Healthy

{healthy}
"""
PARTS = ("Faults", "Healthy, with a remark", "Healthy")
LINK = r"\[([^]]*)\]\(https://github\.com/\S+\)"  # of a model to the report


def now(row: Any) -> tuple[str, str]:
    """The verdict of this code, "fault", "remark" or "healthy", and what it says."""
    from examined.judged import judged

    failed, said = judged(row)
    if failed:
        first = said.splitlines()[0].partition(": ")[2 if row.check == "checkup" else 0]
        sizes = r",? by \S+ of (their std|the std|the largest change)"
        return "fault", re.sub(rf" \((\d+ reads .*|\d+ pairs)\)|:$|{sizes}", "", first)
    if not row.told:
        return "healthy", ""
    begin = re.search(row.told, said).start()  # type: ignore[union-attr]
    end = r"(?<=[.;]) |\n"  # of a sentence
    return "remark", re.split(end, said[:begin])[-1] + re.split(end, said[begin:])[0]


def tables() -> dict[str, Any]:
    from examined.judged import EXAMINED

    assert len({row.name for row in EXAMINED}) == len(EXAMINED), "two models have one name"
    return {row.name: row for row in EXAMINED}


def named(row: Any) -> str:
    """A model with a link to the report of its fault."""
    place, _, number = row.published.partition("#")
    return f"[{row.name}](https://github.com/{place}/issues/{number})" if place else row.name


def listed(rows: dict[str, list[str]]) -> str:
    """Lines of a table: what is said, and of which models."""
    return "\n".join(f"| {said} | {'; '.join(names)} |" for said, names in rows.items())


def read_page(page: str) -> dict[str, dict[str, str]]:
    """Of each of `PARTS`: name of a model -> what is said of it."""
    said_of: dict[str, dict[str, str]] = {}
    for part in page.split("\n## ")[1:]:
        head, _, text = re.sub(LINK, r"\1", part).partition("\n")
        rows = re.findall(r"^\| (?!what the)(.+) \| (.+) \|$", text, re.MULTILINE)
        if not rows:  # the last part is a list of names
            rows = [("", text.strip().rstrip("."))]
        said_of[head] = {}
        for said, names in rows:
            said_of[head].update(dict.fromkeys(names.split("; "), said))
    return said_of


def main() -> None:
    """Examine all models and write the page."""
    sys.path.insert(0, str(ROOT / "attncheck/tests"))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parts: dict[str, dict[str, list[str]]] = {
        part: defaultdict(list) for part in ("fault", "remark", "healthy")
    }
    rows = tables()
    for name, row in rows.items():
        verdict, said = now(row)
        assert (verdict == "fault") == bool(row.says), f"{name} is judged wrongly: {said}"
        parts[verdict][said].append(named(row))
    healthy = "; ".join(parts.pop("healthy")[""]) + "."
    tables_of = {part: listed(said) for part, said in parts.items()}
    page = HEAD.format(total=len(rows), healthy=healthy, **tables_of)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
