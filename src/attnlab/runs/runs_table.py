"""Select and sort runs, and show them as a table, CSV or JSON."""

import csv
import io
import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from attnlab.errors import BadInput, printable
from attnlab.runs.reading import Group, Run, labels

# The default columns; those that no run has are omitted.
USUAL = ("val_loss", "attn/entropy", "attn/head_similarity", "attn/future_mass")
HEADINGS = {"attn/head_similarity": "similarity", "attn/future_mass": "future"}
HINT = (
    "Figures: attnlab plot {folder}; heads of one run: attnlab look RUN\n"
    "Other columns: --columns; one row per run: --each"
)
BAD = {
    "stopped": "cyan",
    "diverged": "yellow",
    "failed": "red",
    "damaged": "red",
    "interrupted": "magenta",
}

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def select(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """The runs that meet all conditions, such as attn=unscaled, optim.lr<=0.01 or val_loss<2.

    Raises BadInput if a condition cannot be parsed, or names a key that no run has.
    """
    for condition in conditions:
        found = re.fullmatch(r"([^=<>!]+?)\s*(!=|<=|>=|=|<|>)\s*(.*)", condition)
        if found is None:
            raise BadInput(f"where = {condition} must be KEY=VALUE, or with !=, <, >, <=, >=")
        key, sign, wanted = found.groups()
        check_key(runs, key)
        try:
            number = float(wanted)
        except ValueError:
            number = None
        if sign not in {"=", "!="} and number is None:
            raise BadInput(f"where = {condition}: {sign} needs a number, not {wanted!r}")
        runs = [run for run in runs if _holds(run.values.get(key), sign, wanted, number)]
    return list(runs)


def sort(groups: Sequence[Group], key: str, *, descending: bool = False) -> list[Group]:
    """Groups by their mean of a key, or else by the text of their first run; NaN comes last.

    Raises BadInput if no run has the key.
    """
    check_key([run for group in groups for run in group.runs], key)
    ranked = [(rank, group) for group in groups if (rank := _rank(group, key))]
    ranked.sort(key=operator.itemgetter(0), reverse=descending)
    return [group for _, group in ranked] + [each for each in groups if not _rank(each, key)]


def check_key(runs: Sequence[Run], key: str) -> None:
    """Refuse, by BadInput, a key that no run has; the message names similar keys."""
    known = {name for run in runs for name in run.values}
    if runs and key not in known:
        near = get_close_matches(key, sorted(known), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see attnlab runs ... --json"
        raise BadInput(f"{key} is neither a setting nor a metric of these runs; {hint}")


def usual(runs: Sequence[Run]) -> list[str]:
    """The default columns for which at least one run has a value."""
    return [key for key in USUAL if any(key in run.values for run in runs)]


def title(runs: Sequence[Run], root: str, of: int) -> str:
    """The number of runs, and the overrides that all of them share."""
    if not runs:
        return f"{root}: none of {of} run{'s' * (of != 1)} match --where"
    shared = set.intersection(*(set(run.changes) for run in runs))
    common = f", all with {' '.join(sorted(shared))}" if shared else ""
    return printable(f"{root}: {len(runs)} run{'s' * (len(runs) != 1)}{common}")


def table(groups: Sequence[Group], columns: Sequence[str], *, each: bool) -> Table:
    """One row per group, with the mean and standard deviation of each column over its seeds.

    With `each`, groups are single runs, and a row has the run's seed, status and values.
    """
    names = labels([run for group in groups for run in group.runs])
    with_status = each or any(group.first.status != "finished" for group in groups)
    apart = (["seed"] if each else []) + (["status"] if with_status else [])
    result = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("run", *apart, *([] if each else ["n"]), *columns):
        heading = HEADINGS.get(column, column.removeprefix("attn/").replace("_", " "))
        left, wrap = column in {"run", "status"}, column in {"run", "status", "attn"}
        result.add_column(
            heading, justify="left" if left else "right", overflow="fold", no_wrap=not wrap
        )
    for group in groups:
        first = group.first
        seed = printable(str(first.values.get("seed", first.folder.name.removeprefix("seed="))))
        before = [escape(names[first.group])] + ([escape(seed)] if each else [])
        before += [_status(group)] if with_status else []
        before += [] if each else [str(len(group.runs))]
        result.add_row(*before, *(escape(cell(group, key)) for key in columns))
    return result


def rows(groups: Sequence[Group], columns: Sequence[str], *, each: bool) -> list[dict[str, Any]]:
    """The rows of `table` as plain values, with all seeds or, with `each`, the directory."""
    names = labels([run for group in groups for run in group.runs])
    found = []
    for group in groups:
        first, of_runs = group.first, [run.values for run in group.runs]
        row: dict[str, Any] = {"run": names[first.group], "attn": first.values["attn"]}
        if each:
            row |= {"seed": first.values.get("seed"), "status": first.status, "step": first.step}
            row |= {"folder": str(first.folder)} | {key: of_runs[0].get(key) for key in columns}
        else:
            row |= {"status": first.status, "n": len(of_runs)}
            row["seeds"] = [values.get("seed") for values in of_runs]
            for key in columns:
                texts = [x for values in of_runs if (x := values.get(key)) is not None]
                row[key] = {"mean": group.mean(key), "sd": group.sd(key)}
                row[key]["values"] = group.numbers(key) or texts
        found.append(row)
    return found


def as_json(content: Any) -> str:
    """Rows, or any plain values, as JSON; NaN and infinity become strings."""
    plain = json.loads(json.dumps(content), parse_constant=lambda word: str(float(word)))
    return json.dumps(plain, indent=2)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV, with separate columns for means and standard deviations."""
    spread = [_spread(row) for row in rows]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(spread[0]) if spread else ["run"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(spread)
    return stream.getvalue()


def shown(value: Any) -> str:
    """A value in a cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.4f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"
    return printable(str(value))


def _holds(value: Any, sign: str, wanted: str, number: float | None) -> bool:
    if number is not None and isinstance(value, int | float) and not isinstance(value, bool):
        return bool(COMPARE[sign](float(value), number))
    word = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return sign in {"=", "!="} and bool(COMPARE[sign](word, wanted))


def _rank(group: Group, key: str) -> tuple[int, float, str] | None:
    """A sort key with numbers before texts; None for NaN or no value."""
    mean, word = group.mean(key), group.first.values.get(key)
    if mean is None:
        return None if word is None else (1, 0.0, str(word))
    return None if math.isnan(mean) else (0, mean, "")


def cell(group: Group, key: str) -> str:
    """The mean and standard deviation of a key over a group, or its texts."""
    mean, sd = group.mean(key), group.sd(key)
    if mean is None or len(group.runs) == 1:
        words = sorted({shown(run.values[key]) for run in group.runs if key in run.values})
        return ", ".join(words) or "-"
    if sd is None or not math.isfinite(sd):
        return shown(mean)
    if sd == 0:
        return f"{mean:.4g}±0"
    places = max(0, 1 - math.floor(math.log10(sd)))  # two digits of the deviation
    return f"{mean:,.{places}f}±{sd:,.{places}f}" if places < 6 else f"{mean:.4g}±{sd:.0e}"


def _status(group: Group) -> str:
    status, steps = group.first.status, sorted({run.step for run in group.runs})
    if status not in BAD:
        return status
    at = f" at {steps[0]}" if len(steps) == 1 else f" at {steps[0]}-{steps[-1]}"
    return f"[{BAD[status]}]{status}{at if steps != [0] else ''}[/]"


def _spread(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            texts = ", ".join(sorted({str(x) for x in value["values"]}))
            mean = texts if value["mean"] is None else value["mean"]
            flat |= {f"{key}_mean": mean, f"{key}_sd": value["sd"]}
        else:
            flat[key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat
