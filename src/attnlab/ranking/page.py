"""The pages of the ranking: HTML that loads nothing, and Markdown for the repository."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import NormalDist, median, stdev
from typing import Any

import jinja2
import yaml

from attnlab.claims.configs import hydra_conf
from attnlab.claims.provenance import text_at
from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting.drawing import styled, svg
from attnlab.ranking.contestant_costs import COSTS, costs, reference_processor
from attnlab.ranking.own_contestant import LIBRARIES
from attnlab.ranking.page_figures import CAPTIONS, figures
from attnlab.ranking.protocol import FILE, LONG, NAME
from attnlab.ranking.rank import Ranking
from attnlab.ranking.trials import Course
from attnlab.ranking.verdicts import Cell, Table

PLACE = "README.md"
NAME_WIDTH, CELL_WIDTH = 18, 15  # characters in a terminal


def html(ranking: Ranking) -> str:
    """The page of a ranking, with the user's own contestant if there is one."""
    return _template("ranking.html.j2").render(_content(ranking))


def publish(ranking: Ranking) -> list[Path]:
    """Write the pages and figures of the committed rows; return the files.

    Raises BadInput for a row that was made with uncommitted changes, at a commit whose
    protocol asked for other runs, or with other settings than those of today.
    """
    directory = ranking.paths.experiments / NAME
    with hydra_conf(ranking.paths.conf):
        check_rows(ranking, directory)
    content = _content(ranking)
    files = {
        directory / PLACE: _template("ranking.md.j2").render(content),
        directory / "ranking-table.html": _template("ranking.html.j2").render(content),
    }
    files |= {directory / f"figure-{name}.svg": text for name, text in content["pictures"].items()}
    for file, text in files.items():
        write_atomically(file, "".join(f"{x.rstrip()}\n" for x in text.splitlines()).encode())
    return list(files)


def check_rows(ranking: Ranking, directory: Path) -> None:
    """Refuse, by BadInput, rows of another protocol, and rows without a clean commit; Hydra's
    directory must be open."""
    now = yaml.safe_load((directory / FILE).read_text(encoding="utf-8"))
    checked = set[tuple[str, str, str]]()
    resolved = dict[tuple[str, ...], str]()
    for trial, row in ranking.rows.items():
        place, git = f"the row of {row['label']}", row["git"]
        if git["commit"] is None or git["dirty"]:
            raise BadInput(f"{place} was made with uncommitted changes; remove it, and run again")
        if trial.overrides not in resolved:
            resolved[trial.overrides] = ranking.known.resolve(trial.overrides).digest
        if not row["id"].startswith(f"run-{resolved[trial.overrides]}"):
            raise BadInput(f"{place} has outdated settings; remove it, and run again")
        key = git["commit"], row["arm"], row["task"]
        if key in checked:
            continue
        checked.add(key)
        then = text_at(key[0], directory / FILE)
        if then is None or not _same(yaml.safe_load(then), now, *key[1:]):
            raise BadInput(f"{place} was made at {key[0][:12]}, when {FILE} was different")


def _same(then: Mapping[str, Any], now: Mapping[str, Any], arm: str, task: str) -> bool:
    """Whether two protocols ask for the same runs of an arm on a task."""
    apart = ("says", "claims", "seconds", "quick", "only", "without", "pairs", "convolution")
    if any(task not in content["tasks"] or arm not in content["arms"] for content in (then, now)):
        return False
    parts, seeds = [], []
    for content in (then, now):
        of_task = {k: x for k, x in content["tasks"][task].items() if k not in apart}
        of_arm = {k: x for k, x in content["arms"][arm].items() if k not in apart}
        seeds.append(set(of_task.pop("selection_seeds", content["selection_seeds"])))
        parts.append(
            [of_task, of_arm, *(content[k] for k in ("test_seeds", "baseline", "common"))]
        )
    return parts[0] == parts[1] and seeds[0] <= seeds[1]  # further seeds may choose another rate


def _content(ranking: Ranking) -> dict[str, Any]:
    table, protocol = ranking.table(), ranking.protocol
    every = table.cells.values()
    steps = [1] if ranking.quick else [1, LONG]
    columns = [
        (task, task.steps * n)
        for task in protocol.tasks
        if task.quick or not ranking.quick
        for n in steps
        if any(c.task is task and c.steps == task.steps * n and c.seeds for c in every)
    ]
    with styled():
        pictures = {
            name: svg(figure, name, text_as="none") for name, figure in figures(table, ranking)
        }
    starts = [list(task.overrides) for task in protocol.tasks]
    known = [
        r for r in ranking.rows.values() if any(r["overrides"][: len(x)] == x for x in starts)
    ]
    rows = list({row["id"]: row for row in known}.values())
    cells, reference = protocol.cells(ranking.quick), reference_processor(protocol, ranking.rows)
    asked = {task.name for arm, task in cells if ranking.own in (None, arm)}
    return {
        "protocol": protocol,
        "own": ranking.own,
        "quick": ranking.quick,
        "left_out": [task.name for task in protocol.tasks if task.name not in asked],
        "columns": columns,
        "lengths": steps,
        "table": table,
        "rows": [
            {"arm": arm, "cells": [table.cells.get((arm.name, t.name, n)) for t, n in columns]}
            | {"costs": costs(Course(protocol, arm, protocol.tasks[0], ranking.rows), reference)}
            for arm in protocol.arms.values()
            if any(cell.arm is arm and cell.seeds for cell in every)
        ],
        "reference": reference,
        "hours": sum(float(row["cpu_seconds"]) for row in rows) / 3600,
        "runs": len(rows),
        "processors": sorted({str(row["processor"]) for row in rows}),
        "software": sorted({f"{x} {row['versions'][x]}" for row in rows for x in LIBRARIES}),
        "pictures": pictures,
        "captions": CAPTIONS,
        "costs": COSTS,
    }


def in_words(cell: Cell | None) -> str:
    """A cell of a table in plain text."""
    if cell is None:
        return ""
    diverged = f", {cell.diverged} diverged" if cell.diverged and math.isfinite(cell.value) else ""
    edge = ", edge" if cell.choice is not None and cell.choice.at_edge and cell.seeds else ""
    verdict = "" if cell.verdict == "baseline" else f"{cell.verdict}:"
    decided = cell.verdict in ("better", "worse")
    by_steps = ", by steps" if decided and cell.unit == "points" and cell.by_steps else ""
    if by_steps and cell.by_steps < cell.seeds:
        by_steps = f", {cell.by_steps} by steps"
    edge += ", partner at edge" if cell.partner_at_edge and verdict else ""
    ended = f", {cell.ended} ended early" if cell.ended else ""
    return f"{verdict} {cell.number}{by_steps}{ended}{diverged}{edge}".strip()


def came_out(row: Mapping[str, Any], pairs: Sequence[Cell]) -> str:
    """What came out for a contestant, in sentences: in its row, and against other contestants. A
    task whose cells have one verdict stands without its lengths."""
    words, said, verdicts = [], [], dict[str, set[str]]()
    cells = [cell for cell in row["cells"] if cell is not None]
    for c in cells:
        verdicts.setdefault(c.task.name, set()).add(c.verdict)
    for verdict in ("better", "worse", "open"):
        places = [
            c.place if len(verdicts[c.task.name]) > 1 else c.task.title(c.task.steps)
            for c in cells
            if c.verdict == verdict
        ]
        words += [f"{verdict} on {', '.join(dict.fromkeys(places))}"] if places else []
    said += [f"Here: {'; '.join(words)}."] if words else []
    said += [
        f"Against {c.arm.partner} on {c.place}: {c.verdict}, {c.interval}."
        for c in pairs
        if c.arm.name == row["arm"].name and c.interval
    ]
    return " ".join(said)


def notes(content: Mapping[str, Any]) -> list[str]:
    """Sentences about the whole table: what it rests on, and what may be wrong with it."""
    table, controls = content["table"], content["table"].controls
    cells, of_controls = table.cells.values(), sum(bool(c.arm.control) for c in table.judged)
    run = {c.arm.name for c in cells if c.verdict != "not run"}
    every = dict.fromkeys(c.arm.name for c in cells)
    found = [
        f"{len(table.judged)} verdicts, {of_controls} of them on controls; better and worse "
        "need 10 of 10 seeds. If no variant differed from its partner, at most "
        f"{table.false_cells:.2f} of them would be expected to be better or worse by chance; this "
        "also bounds the probability of at least one. It holds for the chosen rates: one that is "
        "not the best may add false verdicts."
    ]
    found += [said] if (said := _resolution(table)) else []
    if absent := [name for name in every if name not in run]:
        found.append(
            f"Not run: {len(absent)} of {len(every)} variants and controls ({'; '.join(absent)})."
        )
    parts = dict[str, dict[str, None]]()
    for cell in cells:
        if not cell.seeds and cell.arm.name in run:
            parts.setdefault(cell.task.name, {})[cell.arm.name] = None
    lists = [f"{task} ({'; '.join(names)})" for task, names in parts.items()]
    found += [f"Not finished, or not run: {', '.join(lists)}."] if lists else []
    if table.broken:
        found.append(f"Controls that failed: {'; '.join(table.broken)}.")
    elif controls:
        found.append(
            f"All {len(controls)} finished cells of the controls have the expected verdict, also "
            "those that are not counted among the verdicts below."
        )
    else:
        found.append("No control was run.")
    if apart := sum(cell.apart > 0 for cell in table.judged):
        found.append(
            f"In {apart} verdicts, runs on different processors are compared. Training enlarges "
            "differences of rounding, so their results differ as those of two seeds may."
        )
    if other := sorted({c.task.name for c in table.judged} - {c.task.name for c in controls}):
        found.append(f"Tasks without a control: {', '.join(other)}.")
    again = [c for c in table.repeated if c.unit == "steps" and c.steps > c.task.steps]
    shared = [f"{c.arm.name} on {c.place}" for c in table.repeated if c not in again]
    uncounted = "Not counted among the verdicts: "
    if again:
        found.append(
            f"{uncounted}{len(again)} cells after 4 n steps that repeat those after n steps, "
            "since all runs got to 90 % within n steps and then solved the task."
        )
    if shared:
        found.append(f"{uncounted}{'; '.join(shared)}; other rows have the same runs.")
    if table.edges:
        found.append(f"The best rate is at the edge of those tried: {'; '.join(table.edges)}.")
    if left_out := ["4 n steps"] * content["quick"] + content["left_out"]:
        found.append(f"Left out: {', '.join(left_out)}.")
    return found


def _resolution(table: Table) -> str:
    """Which differences of the loss ten seeds find, in a sentence; empty without such cells."""
    spreads = []
    for cell in table.judged:
        if cell.task.floor is None and not cell.arm.control:
            partner = table.cells.get((cell.arm.partner, cell.task.name, cell.steps))
            pairs = zip(cell.accuracies, partner.accuracies if partner else (), strict=False)
            differences = [a - b for a, b in pairs if math.isfinite(a - b)]
            spreads += [stdev(differences)] if len(differences) > 1 else []
    if not spreads:
        return ""
    # Each of ten seeds has the sign of the true difference with the tenth root of a probability.
    often, seldom = (median(spreads) * NormalDist().inv_cdf(p ** (1 / 10)) for p in (0.9, 0.1))
    return (
        f"Differences of losses vary between seeds by {median(spreads):.3f} nats (standard "
        f"deviation, median of the cells of text). If they are normal, a true difference of "
        f"{often:.3f} nats is found in 9 of 10 tests, and one of {seldom:.3f} nats in 1 of 10."
    )


def _cost_words(spent: Mapping[str, Any], processor: str) -> list[str]:
    """Parameters, FLOPs, numbers in the cache, and CPU time a step, as text; a star marks the time
    on another processor."""
    words = [f"{spent[key]:,.0f}" if key in spent else "" for key in COSTS]
    star = "*" if processor and spent.get("processor") != processor else ""
    return [*words[:-1], f"{spent['ms']:.1f}{star}" if "ms" in spent else ""]


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnlab.ranking", "."),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"in_words": in_words, "notes": notes, "came_out": came_out}
    environment.globals |= {"cost_words": _cost_words}
    return environment.get_template(name)


def print_table(ranking: Ranking) -> None:
    """Print every contestant that was run, one column a cell, and what may be wrong; as many
    columns side by side as the terminal is wide."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    content, console = _content(ranking), Console(highlight=False, markup=False, soft_wrap=True)
    rows, reference = content["rows"], content["reference"]
    heads = [f"{task.title(steps)}\n{steps:,} steps" for task, steps in content["columns"]]
    heads += [name.replace(" ", "\n", 1) for name in COSTS.values()]
    words = [[*map(in_words, x["cells"]), *_cost_words(x["costs"], reference)] for x in rows]
    side = max(1, (console.width - NAME_WIDTH - 2) // CELL_WIDTH)
    for at in range(0, len(heads), side):
        name = Column("variant", width=NAME_WIDTH, overflow="fold")
        printed = Table(name, *heads[at : at + side], box=SIMPLE_HEAD, pad_edge=False)
        for row, cells in zip(rows, words, strict=True):
            style = "bold" if row["arm"] is ranking.own else ""
            printed.add_row(row["arm"].name, *cells[at : at + side], style=style)
        Console().print(printed)
    for cell in [c for c in content["table"].cells.values() if c.arm is ranking.own and c.seeds]:
        console.print(
            f"{cell.place}: {in_words(cell)}; minus {cell.arm.partner}: "
            f"{cell.interval or 'not known'}"
        )
    for note in notes(content):
        console.print(note)
