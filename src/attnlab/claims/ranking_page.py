"""The ranking in Markdown: tables, what may be wrong with them, and costs."""

import math
from collections.abc import Iterable
from statistics import median

from attnlab.claims.judge import FEWEST
from attnlab.claims.page import as_table
from attnlab.claims.ranking import LONG, Cell, Protocol, Table, cells, trial
from attnlab.claims.trials import Rows, tests

COSTS = {"parameters": "parameters", "flops": "FLOPs per position", "cached": "state at T"}
JUDGED = ("better", "worse", "open")


def ranking_block(protocol: Protocol, rows: Rows) -> str:
    """The generated part of the page, of all variants that were run."""
    table = cells(protocol, rows)
    run = [n for n in protocol.arms if any(c.unit for (name, *_), c in table.items() if name == n)]
    blocks = []
    for times, head in ((1, "After n steps"), (LONG, f"After {LONG} n steps")):
        blocks += [f"## {head}", cell_table(protocol, table, run, times)]
    blocks += ["\n".join(f"- {note}" for note in notes(protocol, table, run))]
    heads = ["variant", *COSTS.values(), "CPU ms a step"]
    blocks += ["## Costs", as_table(heads, [[n, *costs(protocol, rows, n)] for n in run])]
    arms = {n: arm for n, arm in protocol.arms.items() if n in run}
    said = {n: f" Its paper claims: {arm.claims}." for n, arm in arms.items() if arm.claims}
    lines = [f"- **{n}**: {arm.says}.{said.get(n, '')}" for n, arm in arms.items()]
    blocks += ["## Variants", "\n".join(lines)]
    lines = [f"- **{n}**: {task.says}; n = {task.steps}" for n, task in protocol.tasks.items()]
    return "\n\n".join([*blocks, "## Tasks", "\n".join(lines)])


def cell_table(protocol: Protocol, table: Table, names: Iterable[str], times: int) -> str:
    """The cells of some variants at one length."""
    heads = [f"{name}, {times * task.steps:,}" for name, task in protocol.tasks.items()]
    lines = [[n, *(words(table[n, t, times]) for t in protocol.tasks)] for n in names]
    return as_table(["variant", *heads], lines)


def words(cell: Cell) -> str:
    """A cell: the verdict, the median, and the difference with its interval."""
    if not cell.unit:
        return cell.verdict
    digits = {"nats": 3, "steps": 0}.get(cell.unit, 1)
    said = f"{cell.value:,.{digits}f} {cell.unit}"
    if not math.isfinite(cell.value):
        said = f"{cell.diverged} diverged" if cell.diverged else "90 % not reached"
    if cell.at_edge:
        said += " (best rate is the last one tried)"
    if math.isnan(cell.difference[1]):
        return said
    a, b, c = (f"{x:+,.{digits}f}".replace("inf", "∞") for x in cell.difference)
    return f"**{cell.verdict}**: {said}<br>{a} ({b} to {c})".replace("+nan", "unknown")


def notes(protocol: Protocol, table: Table, run: list[str]) -> list[str]:
    """What may be wrong with the table."""
    judged = {k: c for k, c in table.items() if c.verdict in JUDGED}
    expected = len(judged) * 2 * 0.5**FEWEST
    found = [
        f"{len(judged)} verdicts; by chance alone, about {expected:.1f} would be better or worse"
    ]
    for name in run:
        if must := protocol.arms[name].control:
            bad = [f"{t} at {n} n" for (a, t, n), c in judged.items()
                   if a == name and c.verdict != must]  # fmt: skip
            said = f"it is not on {', '.join(bad)}" if bad else "it is, in every cell"
            found.append(f"control “{name}” must be {must}: {said}")
    if absent := [name for name in protocol.arms if name not in run]:
        found.append(f"not run: {', '.join(absent)}")
    return found


def costs(protocol: Protocol, rows: Rows, name: str) -> list[str]:
    """Sizes of a variant's model of the first task, and its CPU time."""
    task = next(iter(protocol.tasks.values()))
    found, _ = tests(trial(protocol, name, task, LONG), rows, protocol.test_seeds)
    if not found:
        return [""] * (len(COSTS) + 1)
    values = found[0]["values"]
    known = values["costs"] | {"parameters": values["parameters"]}
    milliseconds = median(1000 * row["cpu_seconds"] / row["values"]["steps"] for row in found)
    return [*(f"{known[key]:,.0f}" for key in COSTS), f"{milliseconds:.0f}"]
