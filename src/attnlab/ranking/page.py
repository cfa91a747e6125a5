"""The pages of the ranking: HTML that loads nothing, and Markdown for the repository."""

import math
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import yaml
from matplotlib.figure import Figure

from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting.drawing import MARKERS, color_of, label_lines, looks, panels, styled, svg
from attnlab.ranking.protocol import FILE, LONG
from attnlab.ranking.rank import NAME, Ranking
from attnlab.ranking.trials import Course
from attnlab.ranking.verdicts import Cell, Table

PLACE = "README.md"
COSTS = {
    "parameters": "parameters",
    "flops": "FLOPs a position",
    "cached": "state at T",
    "ms": "CPU ms a step",
}


def html(ranking: Ranking) -> str:
    """The page of a ranking, with the user's own contestant if there is one."""
    return _template("ranking.html.j2").render(_content(ranking))


def publish(ranking: Ranking) -> list[Path]:
    """Write the pages and figures of the committed rows; return the files.

    Raises BadInput for a row that was made with uncommitted changes, at a commit without this
    protocol, or with other settings than those of today.
    """
    directory = ranking.paths.experiments / NAME
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
    """Refuse, by BadInput, rows of another protocol, and rows without a clean commit."""
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
        command = ["git", "-C", str(directory), "show", f"{key[0]}:./{FILE}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        then = yaml.safe_load(shown.stdout) if shown.returncode == 0 else None
        if then is None or not _same(then, now, *key[1:]):
            raise BadInput(f"{place} was made at {key[0][:12]}, when {FILE} was different")


def _same(then: Mapping[str, Any], now: Mapping[str, Any], arm: str, task: str) -> bool:
    """Whether two protocols ask for the same runs of an arm on a task."""
    apart = ("says", "claims", "seconds", "quick", "only", "without", "convolution")
    parts = [
        [{k: x for k, x in (content["tasks"].get(task) or {}).items() if k not in apart}]
        + [{k: x for k, x in (content["arms"].get(arm) or {}).items() if k not in apart}]
        + [content[key] for key in ("selection_seeds", "test_seeds", "baseline", "common")]
        for content in (then, now)
    ]
    return parts[0] == parts[1] and task in then["tasks"] and arm in then["arms"]


def _content(ranking: Ranking) -> dict[str, Any]:
    table, protocol = ranking.table(), ranking.protocol
    steps = [1] if ranking.quick else [1, LONG]
    columns = [
        (task, task.steps * n)
        for task in protocol.tasks
        if task.quick or not ranking.quick
        for n in steps
        if any((arm, task.name, task.steps * n) in table.cells for arm in protocol.arms)
    ]
    with styled():
        pictures = {
            name: svg(figure, name, text_as="none") for name, figure in _figures(table, ranking)
        }
    rows = list(ranking.rows.values())
    cells = protocol.cells(ranking.quick)
    asked = {task.name for arm, task in cells if ranking.own in (None, arm)}
    return {
        "protocol": protocol,
        "own": ranking.own,
        "quick": ranking.quick,
        "left_out": [task.name for task in protocol.tasks if task.name not in asked],
        "columns": columns,
        "table": table,
        "rows": [
            {"arm": arm, "cells": [table.cells.get((arm.name, t.name, n)) for t, n in columns]}
            | {"costs": costs(Course(protocol, arm, protocol.tasks[0], ranking.rows))}
            for arm in protocol.arms.values()
        ],
        "hours": sum(float(row["cpu_seconds"]) for row in rows) / 3600,
        "runs": len(rows),
        "processors": sorted({str(row["processor"]) for row in rows}),
        "pictures": pictures,
        "costs": COSTS,
    }


def costs(course: Course) -> dict[str, float]:
    """What a contestant costs, from its runs on the first task; empty without a row."""
    rows = [row for row in course.tests(course.task.steps) if row["status"] != "diverged"]
    if not rows:
        return {}
    values = rows[0]["values"]
    known = values["costs"] | {"parameters": values["parameters"]}  # of the whole model
    found = {key: float(known[key]) for key in COSTS if known.get(key) is not None}
    if any(row.get("device", "cpu") != "cpu" for row in rows):
        return found  # the processor only waits
    seconds = [row["cpu_seconds"] + row.get("cpu_seconds_before", 0) for row in rows]
    steps = [row["values"]["steps"] for row in rows]
    ms = [1000 * x / n for x, n in zip(seconds, steps, strict=True)]
    return found | {"ms": median(ms)}


def _figures(table: Table, ranking: Ranking) -> Iterator[tuple[str, Figure]]:
    """Recall against the cache, text against time, text against the learning rate, by their
    titles; those for which there are rows."""
    protocol, rows = ranking.protocol, ranking.rows
    text = protocol.tasks[0]
    of_text = {arm: Course(protocol, arm, text, rows) for arm in protocol.arms.values()}
    spent = {arm.name: costs(course) for arm, course in of_text.items()}
    cells = table.cells.values()
    shown = [c for c in cells if c.seeds and not c.arm.control]
    recall = {c.arm.name: c for c in shown if c.task.name == "capacity"}
    recall = recall or {c.arm.name: c for c in shown if c.task.name == "mqar"}
    points = {
        name: (spent[name]["cached"], median(cell.accuracies))
        for name, cell in recall.items()
        if "cached" in spent[name]
    }
    yield from _scatter(points, "state at T, in numbers", "accuracy", "recall", best=max)
    points = {
        cell.arm.name: (spent[cell.arm.name]["ms"], cell.value)
        for cell in shown
        if cell.task is text and cell.unit == "nats" and "ms" in spent[cell.arm.name]
    }
    yield from _scatter(points, "CPU ms a step", f"loss, {text.name}", "speed", best=min)
    figure, (axes,) = panels(1, width=7.0)
    for arm, course in of_text.items():
        choice, _ = course.choose(text.steps)
        if choice is not None and not arm.control:
            color, kind = looks([arm.name.split(",")[0]])[arm.name.split(",")[0]]
            axes.plot(*zip(*choice.losses.items(), strict=True), MARKERS[kind] + "-", color=color,
                      label=arm.name)  # fmt: skip
    axes.set(xscale="log", xlabel="learning rate", ylabel=f"loss after {text.steps} steps")
    if axes.get_lines():
        label_lines(axes)
        yield "rates", figure


def _scatter(
    points: Mapping[str, tuple[float, float]],
    x: str,
    y: str,
    name: str,
    best: Callable[..., float],
) -> Iterator[tuple[str, Figure]]:
    """Named points, if any, and the line of those that no point with a smaller x surpasses."""
    if not points:
        return
    figure, (axes,) = panels(1, width=7.0)
    front = list[tuple[float, float]]()
    for label, (cost, value) in sorted(points.items(), key=lambda item: item[1][0]):
        axes.plot([cost], [value], "o", color=color_of(label.split(",")[0]), label=label)
        if not front or best(value, front[-1][1]) == value:
            front.append((cost, value))
    axes.plot(*zip(*front, strict=True), drawstyle="steps-post", color="gray", label="_front")
    wide = max(cost for cost, _ in front) > 10 * min(cost for cost, _ in front)
    axes.set(xscale="log" if wide else "linear", xlabel=x, ylabel=y)
    label_lines(axes)
    yield name, figure


def in_words(cell: Cell | None) -> str:
    """A cell of a table in plain text."""
    if cell is None:
        return ""
    diverged = f", {cell.diverged} diverged" if cell.diverged and math.isfinite(cell.value) else ""
    edge = ", edge" if cell.choice is not None and cell.choice.at_edge and cell.seeds else ""
    verdict = "" if cell.verdict == "baseline" else cell.verdict
    return f"{verdict} {cell.number}{diverged}{edge}".strip()


def came_out(cells: Sequence[Cell | None]) -> str:
    """What came out for a contestant, in a sentence."""
    words = []
    for verdict in ("better", "worse", "open"):
        where = [f"{c.task.name} ({c.steps:,})" for c in cells if c and c.verdict == verdict]
        words += [f"{verdict} on {', '.join(where)}"] if where else []
    return f"Here: {'; '.join(words)}." if words else ""


def notes(content: Mapping[str, Any]) -> list[str]:
    """Sentences about the whole table: what it rests on, and what may be wrong with it."""
    table, controls = content["table"], [c for c in content["table"].judged if c.arm.control]
    found = [
        f"{len(table.judged)} verdicts, each by 10 of 10 seeds. If no variant differed from its "
        f"partner, {table.false_cells:.2f} of them would be better or worse by chance; the "
        f"probability of at least one is at most {table.family_error:.1%}."
    ]
    if table.broken:
        found.append(f"Controls that failed: {'; '.join(table.broken)}.")
    elif controls:
        found.append(f"All {len(controls)} cells of the controls have the expected verdict.")
    else:
        found.append("No control was run.")
    if table.edges:
        found.append(f"The best rate is at the edge of those tried: {'; '.join(table.edges)}.")
    if content["left_out"]:
        what = "4 n steps, " if content["quick"] else ""
        found.append(f"Left out: {what}{', '.join(content['left_out'])}.")
    return found


def _cost_words(spent: Mapping[str, float]) -> list[str]:
    """Parameters, FLOPs, numbers in the cache, and CPU time a step, as text."""
    words = [f"{spent[key]:,.0f}" if key in spent else "" for key in COSTS]
    return [*words[:-1], f"{spent['ms']:.1f}" if "ms" in spent else ""]


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
    """Print every contestant that was run, one column a cell, and what may be wrong."""
    from rich.console import Console
    from rich.table import Column
    from rich.table import Table as Printed

    content, console = _content(ranking), Console(highlight=False, markup=False, soft_wrap=True)
    for length in dict.fromkeys(n // t.steps for t, n in content["columns"]):
        kept = [i for i, (t, n) in enumerate(content["columns"]) if n // t.steps == length]
        heads = [f"{t.name}\n{n:,} steps" for t, n in (content["columns"][i] for i in kept)]
        printed = Printed(Column("variant", overflow="fold"), *heads, *COSTS.values())
        for row in content["rows"]:
            cells = [row["cells"][i] for i in kept]
            if any(cell is not None and cell.seeds for cell in cells):
                style = "bold" if row["arm"] is ranking.own else ""
                words = [in_words(cell) for cell in cells]
                printed.add_row(row["arm"].name, *words, *_cost_words(row["costs"]), style=style)
        Console().print(printed)
    for cell in [c for c in content["table"].cells.values() if c.arm is ranking.own and c.seeds]:
        console.print(
            f"{cell.task.name}, {cell.steps:,} steps: {in_words(cell)}; minus {cell.arm.partner}: "
            f"{cell.interval or 'not known'}"
        )
    for note in notes(content):
        console.print(note)
