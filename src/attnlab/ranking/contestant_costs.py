"""What contestants cost: parameters, FLOPs, cached numbers, and CPU time per step."""

from collections import Counter
from statistics import median
from typing import Any

from attnlab.claims.rows import Row
from attnlab.ranking.protocol import LONG, Protocol
from attnlab.ranking.trials import Course, Rows

COSTS = {
    "parameters": "parameters",
    "flops": "FLOPs per position",
    "cached": "state at T",
    "ms": "CPU ms per step",
}


def reference_processor(protocol: Protocol, rows: Rows) -> str:
    """The processor with which times are compared: of those of the baseline, the one on which most
    contestants were timed; empty if the baseline was not."""
    text, arms = protocol.tasks[0], protocol.arms
    timed = {name: _times(Course(protocol, arm, text, rows)) for name, arm in arms.items()}
    counts = Counter(processor for found in timed.values() for processor in found)
    return max(timed[protocol.baseline], key=lambda processor: counts[processor], default="")


def costs(course: Course, reference: str) -> dict[str, Any]:
    """What a contestant costs on a task, and on which processor its time was measured: on the
    reference if it was timed there. Empty without a row."""
    rows = _timed_rows(course)
    if not rows:
        return {}
    values = rows[0]["values"]
    known = values["costs"] | {"parameters": values["parameters"]}  # of the whole model
    found: dict[str, Any] = {k: float(known[k]) for k in COSTS if known.get(k) is not None}
    times = _times(course)
    if times:
        processor = reference if reference in times else next(iter(times))
        found |= {"ms": times[processor], "processor": processor}
    return found


def _timed_rows(course: Course) -> list[Row]:
    """The longest runs of a contestant on a task, at all of its rates; none that diverged."""
    for steps in (LONG * course.task.steps, course.task.steps):
        choice, _ = course.chosen(steps)
        rates = [] if choice is None else sorted({choice.rate, *choice.losses})
        seeds = (*course.protocol.test, *course.task.selection_seeds)
        every = [course.row(rate, steps, seed) for rate in rates for seed in seeds]
        if rows := [row for row in every if row is not None and row["status"] != "diverged"]:
            return rows
    return []


def _times(course: Course) -> dict[str, float]:
    """Processor -> median CPU time per step in ms. Those of a GPU are left out, since the
    processor only waits."""
    found: dict[str, list[float]] = {}
    for row in _timed_rows(course):
        if row.get("device", "cpu") == "cpu":
            seconds = row["cpu_seconds"] + row.get("cpu_seconds_before", 0)
            found.setdefault(str(row["processor"]), []).append(seconds / row["values"]["steps"])
    return {processor: 1000 * median(times) for processor, times in found.items()}
