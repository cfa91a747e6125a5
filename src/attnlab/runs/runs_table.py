"""Select and sort runs, and show them as a table, CSV or JSON."""

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
from attnlab.runs.pairing import Comparison, Setting
from attnlab.runs.reading import Run
from attnlab.runs.settings import settings_with

# The default columns of `attnlab runs` and `attnlab compare`; those that no run has are omitted.
USUAL = ("val_loss", "difference", "attn/entropy", "attn/head_similarity", "attn/future_mass")
COMPARED = ("loss", "difference", "interval", "better", "parameters", "ms_a_step")
OF_PAIRS = ("loss", "difference", "interval", "better", "ms_a_step")  # no run stores them
HEADINGS = {
    "attn/head_similarity": "similarity",
    "attn/future_mass": "future",
    "loss": "val\nloss",
    "difference": "median\ndiff",
    "better": "better\nin",
    "parameters": "para-\nmeters",
    "ms_a_step": "ms a\nstep",
}
HINT = (
    "Differences: attnlab compare {folder}; heads of one run: attnlab look RUN\n"
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
        match = re.fullmatch(r"([^=<>!]+?)\s*(!=|<=|>=|=|<|>)\s*(.*)", condition)
        if match is None:
            raise BadInput(f"where = {condition} must be KEY=VALUE, or with !=, <, >, <=, >=")
        key, sign, wanted = match.groups()
        check_key(runs, key)
        try:
            number = float(wanted)
        except ValueError:
            number = None
        if sign not in {"=", "!="} and number is None:
            raise BadInput(f"where = {condition}: {sign} needs a number, not {wanted!r}")
        runs = [run for run in runs if _holds(run.values.get(key), sign, wanted, number)]
    return list(runs)


def sort(
    comparisons: Sequence[Comparison], key: str, *, descending: bool = False
) -> list[Comparison]:
    """Settings by their mean of a key, or else by the text of their first run; NaN comes last.

    Raises BadInput if no run has the key.
    """
    check_key([run for c in comparisons for run in c.setting.runs], key)
    ranked = [(rank, i) for i, c in enumerate(comparisons) if (rank := _rank(c, key))]
    ranked.sort(key=operator.itemgetter(0), reverse=descending)
    unranked = [c for c in comparisons if not _rank(c, key)]
    return [comparisons[i] for _, i in ranked] + unranked


def check_key(runs: Sequence[Run], key: str) -> None:
    """Refuse, by BadInput, a key that no run has; the message names similar keys."""
    names = {name for run in runs for name in run.values} | {*OF_PAIRS}
    if runs and key not in names:
        near = get_close_matches(key, sorted(names), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see attnlab runs ... --json"
        raise BadInput(f"{key} is neither a setting nor a metric of these runs; {hint}")


def usual(comparisons: Sequence[Comparison], wanted: Sequence[str]) -> list[str]:
    """Those of the wanted columns for which a setting has a value."""
    return [key for key in wanted if any(cell(c, key) not in ("-", "") for c in comparisons)]


def title(runs: Sequence[Run], root: str, of: int) -> str:
    """The number of runs, and the overrides that all of them share."""
    if not runs:
        return f"{root}: none of {of} run{'s' * (of != 1)} match --where"
    named = settings_with("named")
    typed = [{text for key, text in run.typed.items() if key not in named} for run in runs]
    shared = sorted(set.intersection(*typed))
    common = f", all with {' '.join(shared)}" if shared else ""
    return printable(f"{root}: {len(runs)} run{'s' * (len(runs) != 1)}{common}")


def one_by_one(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """A row for each run instead of each setting."""
    rows = []
    for c in comparisons:
        for run in c.setting.runs:
            setting = Setting((run,), c.setting.label)
            paired = tuple(pair for pair in c.pairs if pair[0] is run)
            baseline = setting if c.is_baseline else c.baseline
            rows.append(Comparison(setting, baseline, c.why, paired))
    return rows


def table(comparisons: Sequence[Comparison], columns: Sequence[str], *, each: bool) -> Table:
    """One row per setting, with the mean and standard deviation of each column over its seeds.

    With `each`, settings are single runs, and a row has the run's seed, status and values.
    """
    runs = [run for c in comparisons for run in c.setting.runs]
    with_status = each or any(run.status != "finished" for run in runs)
    apart = (["seed"] if each else []) + (["status"] if with_status else [])
    result = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    headings = HEADINGS | _interval_heading(comparisons)
    for column in ("run", *apart, *([] if each else ["n"]), *columns):
        heading = headings.get(column, column.removeprefix("attn/").replace("_", " "))
        left, wrap = column in {"run", "status"}, column in {"run", "status", "attn"}
        result.add_column(
            heading, justify="left" if left else "right", overflow="fold", no_wrap=not wrap
        )
    for n, c in enumerate(comparisons):
        if n and c.is_baseline and not each:
            result.add_section()
        before = [escape(c.setting.label)]
        before += [escape(printable(str(c.setting.first.seed)))] if each else []
        before += [_status(c.setting)] if with_status else []
        before += [] if each else [str(len(c.setting.runs))]
        result.add_row(*before, *(escape(cell(c, key)) for key in columns))
    return result


def shown(value: Any) -> str:
    """A value in a cell."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
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


def _rank(c: Comparison, key: str) -> tuple[int, float, str] | None:
    """A sort key with numbers before texts; None for NaN or no value."""
    number: float | None = c.setting.mean(key)
    if key in OF_PAIRS:
        paired = {"difference": c.interval[0], "interval": c.interval[0], "better": c.better}
        alone = {"loss": c.setting.mean("val_loss"), "ms_a_step": c.setting.milliseconds}
        number = alone[key] if key in alone else paired[key] if c.pairs else None
    word = c.setting.first.values.get(key)
    if number is None:
        return None if word is None else (1, 0.0, str(word))
    return None if math.isnan(number) else (0, number, "")


def cell(c: Comparison, key: str) -> str:
    """The mean and standard deviation of a key over the seeds, or its texts."""
    if key in OF_PAIRS:
        return _paired_cell(c, key)
    mean, sd = c.setting.mean(key), c.setting.sd(key)
    if mean is None or len(c.setting.runs) == 1:
        words = sorted({shown(run.values[key]) for run in c.setting.runs if key in run.values})
        return ", ".join(words) or "-"
    if sd is None or not math.isfinite(sd):
        return shown(mean)
    if sd == 0:
        return shown(int(mean) if mean.is_integer() else mean)
    places = max(0, 1 - math.floor(math.log10(sd)))  # two digits of the deviation
    return f"{mean:,.{places}f}±{sd:,.{places}f}" if places < 6 else f"{mean:.4g}±{sd:.0e}"


def _paired_cell(c: Comparison, key: str) -> str:
    """What a comparison says in a column of the table."""
    median, low, high = c.interval
    if key == "ms_a_step":
        time = c.setting.milliseconds
        return "-" if time is None else f"{time:.3g}"
    if key == "loss":
        return "-" if (loss := c.setting.mean("val_loss")) is None else f"{loss:.4f}"
    if c.is_baseline:
        return "baseline" if key == "difference" else ""
    if not c.pairs:
        return "-"
    if c.reads_ahead:  # a lower loss is no better prediction
        return "leak" if key == "difference" else "-"
    if key == "better":
        return f"{c.better} of {len(c.pairs)}"
    if math.isinf(median):
        return "diverged" if key == "difference" else "-"
    if key == "interval" and len(c.finite) < 2:
        return "-"
    if key == "interval":
        ends = (low, high) if not math.isnan(low) else (min(c.finite), max(c.finite))
        return f"{ends[0]:+.3f} to {ends[1]:+.3f}"
    return f"{median:+.4f}"


def _interval_heading(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """The exact interval needs six seeds; with fewer, a cell shows the lowest and the highest."""
    exact = {
        not math.isnan(c.interval[1]) for c in comparisons if cell(c, "interval") not in ("-", "")
    }
    mixed = "95 % (n > 5)\nor range" if len(exact) == 2 else ""
    return {"interval": mixed or ("95 %\ninterval" if True in exact else "lowest to\nhighest")}


def _status(setting: Setting) -> str:
    """How the runs ended, with their last steps unless they finished."""
    ends = []
    for status in dict.fromkeys(run.status for run in setting.runs):
        steps = sorted({run.step for run in setting.runs if run.status == status})
        number = sum(run.status == status for run in setting.runs)
        words = status if number == len(setting.runs) else f"{number} {status}"
        if status in BAD:
            at = f" at {steps[0]}" if len(steps) == 1 else f" at {steps[0]}-{steps[-1]}"
            words = f"[{BAD[status]}]{words}{at if steps != [0] else ''}[/]"
        ends.append(words)
    return ", ".join(ends)
