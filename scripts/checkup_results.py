"""Write docs/checkup-results.md: what the checkup says of each model of attncheck/tests.

python scripts/checkup_results.py              # some minutes
python scripts/checkup_results.py --libraries  # the small models of the installed libraries alone,
                                               # minutes; with names, these
"""

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
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
{libraries}"""
LIBRARIES = """
## In libraries

Small random models of the architectures that are installed, with the reports of their users where
there are some, by `python scripts/checkup_results.py --libraries`.
"""
RUN = """
### {title}

{date}, torch {torch}: {right} of {total} models without a finding.

| model | what the checkup says | reports |
|---|---|---|
{rows}
"""
# Reports of users about an architecture.
REPORTS = {
    **{
        kind: "huggingface/transformers#48745"
        for kind in ("roformer", "big_bird", "rembert", "megatron-bert")
    },
    "doge": "huggingface/transformers#48748",  # mended by #48821
}
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
    _, _, runs = PAGE.read_text(encoding="utf-8").partition(LIBRARIES)
    libraries = LIBRARIES + runs if runs else ""
    page = HEAD.format(total=len(rows), healthy=healthy, libraries=libraries, **tables_of)
    PAGE.write_text(page, encoding="utf-8")


# ---- models of libraries


def models_of_libraries() -> Iterator[tuple[str, Any]]:
    """The name of each small model, and what makes it."""
    from examined import families

    for kind in sorted([*families.KINDS, *families.MEANT]):
        yield kind, partial(families.of_transformers, kind)
    for option in ["", *families.CONFIGURATIONS]:
        name = f"x-transformers, {option}" if option else "x-transformers"
        yield name, partial(families.of_x_transformers, option)


def examined(make: Any) -> str:
    """The first line of what a checkup finds in a model, or ""."""
    from attncheck import checkup
    from examined import families

    torch.manual_seed(0)
    report = checkup(make(), vocab_size=families.V, block_size=families.T)
    found = [r for r in report.results if r.status in ("fault", "suspicious", "failed", "error")]
    if not found:
        return ""
    lines = found[0].message.splitlines()
    place = [line for line in lines[1:] if line.startswith("the first module")]
    return "; ".join([f"{found[0].check}, {found[0].status}: {lines[0]}", *place])


def write_libraries(names: Sequence[str]) -> None:
    """Examine the models of the installed libraries, all or those of some names, and write their
    part of the page."""
    rows: list[str] = []
    total = 0
    for name, make in models_of_libraries():
        if names and name not in names:
            continue
        total += 1
        try:
            said = examined(make)
        except Exception as error:  # of another version of the library
            said = f"not made: {type(error).__name__}"
        print(f"{name}: {said or 'healthy'}", file=sys.stderr)
        if said:
            owner, _, number = REPORTS.get(name, "").partition("#")
            link = f"[{owner}#{number}](https://github.com/{owner}/issues/{number})"
            rows.append(f"| {name} | {said} | {link if owner else ''} |")
    title = " and ".join(f"{each} {version(each)}" for each in ("transformers", "x-transformers"))
    run = RUN.format(
        title=title,
        date=datetime.now(timezone.utc).date(),
        torch=torch.__version__.partition("+")[0],
        right=total - len(rows),
        total=total,
        rows="\n".join(rows),
    )
    page = PAGE.read_text(encoding="utf-8")
    before, _, runs = page.partition(LIBRARIES)
    others = [part for part in runs.split("\n### ") if part.strip()]
    kept = [f"\n### {part}" for part in others if not part.startswith(f"{title}\n")]
    PAGE.write_text(before + LIBRARIES + run + "".join(kept), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "attncheck/tests"))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--libraries"]:
        write_libraries(sys.argv[2:])
    else:
        main()
