"""The pages of the ranking: HTML that loads nothing, and Markdown for the repository."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import yaml
from matplotlib.figure import Figure

from attnlab.claims.configs import hydra_conf
from attnlab.claims.provenance import text_at
from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting.drawing import MARKERS, color_of, label_lines, looks, panels, styled, svg
from attnlab.ranking.contestant_costs import COSTS, costs, reference_processor
from attnlab.ranking.protocol import FILE, LONG
from attnlab.ranking.rank import NAME, Ranking
from attnlab.ranking.trials import Course
from attnlab.ranking.verdicts import Cell, Table

PLACE = "README.md"
NAME_WIDTH, CELL_WIDTH = 18, 15  # characters in a terminal
RECALL = ("capacity", "mqar")  # tasks, drawn against the size of the state


def html(ranking: Ranking) -> str:
    """The page of a ranking, with the user's own contestant if there is one."""
    return _template("ranking.html.j2").render(_content(ranking))


def publish(ranking: Ranking) -> list[Path]:
    """Write the pages and figures of the committed rows; return the files.

    Raises BadInput for a row that was made with uncommitted changes, at a commit without this
    protocol, or with other settings than those of today.
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
            name: svg(figure, name, text_as="none") for name, figure in _figures(table, ranking)
        }
    rows = list({row["id"]: row for row in ranking.rows.values()}.values())
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
        "pictures": pictures,
        "costs": COSTS,
    }


def _figures(table: Table, ranking: Ranking) -> Iterator[tuple[str, Figure]]:
    """Recall against the state, text against time, text against the learning rate, by their
    titles; those for which there are rows."""
    protocol, rows = ranking.protocol, ranking.rows
    text, arms = protocol.tasks[0], [arm for arm in protocol.arms.values() if not arm.control]
    processor = reference_processor(protocol, ranking.rows)
    for task in [each for each in protocol.tasks if each is text or each.name in RECALL]:
        key, steps = (
            "ms" if task is text else "cached",
            task.steps * (1 if ranking.quick else LONG),
        )
        points = dict[str, tuple[float, float]]()
        for arm in arms:
            course = Course(protocol, arm, task, rows)
            spent = costs(course, processor)  # of the model of this task
            cell = table.cells.get((arm.name, task.name, steps))
            other = key == "ms" and processor and spent.get("processor") != processor
            if other or key not in spent:
                continue
            if cell is not None and cell.seeds and math.isfinite(cell.value):
                results = [0.0 if math.isnan(x) else x for x in cell.accuracies]
                result = cell.value if task is text else median(results)
                points[arm.name] = spent[key], result
        what = f"{'loss' if task is text else 'accuracy'}: {task.name}, {steps:,} steps"
        if len(points) > 1:
            x = "CPU ms per step" if task is text else "state at T, in numbers"
            yield "speed" if task is text else task.name, _scatter(points, x, what, task is text)
    figure, (axes,) = panels(1, width=7.0)
    rates = set[float]()
    for arm in arms:
        choice, _ = Course(protocol, arm, text, rows).choose(text.steps)
        if choice is not None:
            rates |= choice.losses.keys()
            color, kind = looks([arm.name.split(",")[0]])[arm.name.split(",")[0]]
            axes.plot(*zip(*choice.losses.items(), strict=True), MARKERS[kind] + "-", color=color,
                      label=arm.name)  # fmt: skip
    axes.set(
        xscale="log", xlabel="learning rate", ylabel=f"loss: {text.name}, {text.steps:,} steps"
    )
    if axes.get_lines():
        axes.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)])
        axes.minorticks_off()
        label_lines(axes)
        yield "rates", figure


def _scatter(points: Mapping[str, tuple[float, float]], x: str, y: str, falls: bool) -> Figure:
    """Named points, and the line of those that are better than all points with a smaller x."""
    figure, (axes,) = panels(1, width=7.0)
    front, sign = list[tuple[float, float]](), 1 if falls else -1
    for label, (cost, value) in sorted(points.items(), key=lambda p: (p[1][0], sign * p[1][1])):
        axes.plot([cost], [value], "o:", color=color_of(label.split(",")[0]), label=label)
        if not front or sign * value < sign * front[-1][1]:
            front.append((cost, value))
    axes.plot(*zip(*front, strict=True), drawstyle="steps-post", color="gray", label="_front")
    wide = max(cost for cost, _ in points.values()) > 10 * min(cost for cost, _ in points.values())
    axes.set(xscale="log" if wide else "linear", xlabel=x, ylabel=y)
    label_lines(axes)
    return figure


def in_words(cell: Cell | None) -> str:
    """A cell of a table in plain text."""
    if cell is None:
        return ""
    diverged = f", {cell.diverged} diverged" if cell.diverged and math.isfinite(cell.value) else ""
    edge = ", edge" if cell.choice is not None and cell.choice.at_edge and cell.seeds else ""
    verdict = "" if cell.verdict == "baseline" else f"{cell.verdict}:"
    decided = cell.verdict in ("better", "worse")
    by_steps = ", by steps" if decided and not cell.difference[0] else ""
    return f"{verdict} {cell.number}{by_steps}{diverged}{edge}".strip()


def came_out(row: Mapping[str, Any], pairs: Sequence[Cell]) -> str:
    """What came out for a contestant, in sentences: in its row, and against other contestants."""
    words, said = [], []
    for verdict in ("better", "worse", "open"):
        cells = [c for c in row["cells"] if c is not None and c.verdict == verdict]
        words += [f"{verdict} on {', '.join(c.place for c in cells)}"] if cells else []
    said += [f"Here: {'; '.join(words)}."] if words else []
    said += [
        f"Against {c.arm.partner} on {c.place}: {c.verdict}, {c.interval}."
        for c in pairs
        if c.arm.name == row["arm"].name and c.interval
    ]
    return " ".join(said)


def notes(content: Mapping[str, Any]) -> list[str]:
    """Sentences about the whole table: what it rests on, and what may be wrong with it."""
    table, controls = content["table"], [c for c in content["table"].judged if c.arm.control]
    cells = table.cells.values()
    run = {c.arm.name for c in cells if c.verdict != "not run"}
    every = dict.fromkeys(c.arm.name for c in cells)
    found = [
        f"{len(table.judged)} verdicts; better and worse need 10 of 10 seeds. If no variant "
        f"differed from its partner, at most {table.false_cells:.2f} of them would be expected to "
        "be better or worse by chance, so the probability of at least one is at most "
        f"{100 * min(1, table.false_cells):.1f} %. This holds for the chosen rates: one that is "
        "not the best may add false verdicts."
    ]
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
            f"All {len(controls)} finished cells of the controls have the expected verdict."
        )
    else:
        found.append("No control was run.")
    if table.edges:
        found.append(f"The best rate is at the edge of those tried: {'; '.join(table.edges)}.")
    if left_out := ["4 n steps"] * content["quick"] + content["left_out"]:
        found.append(f"Left out: {', '.join(left_out)}.")
    return found


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
