"""Select and sort runs, and show them as a table."""

import json
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape, render
from rich.table import Table

from attnlab.errors import BadInput, counted, printable
from attnlab.runs.pairing import Comparison, Setting
from attnlab.runs.reading import Run, read_runs
from attnlab.runs.settings import settings_with

# The default columns of `attnlab runs` and `attnlab compare`; those that no run has are omitted.
USUAL = ("val_loss", "difference", "attn/entropy", "attn/head_similarity", "attn/future_mass")
COMPARED = ("loss", "difference", "interval", "better")
COSTS = (
    *("costs.parameters", "parameters", "costs.flops", "costs.flops_counted", "costs.cached"),
    "ms_a_step",
)
OF_PAIRS = ("loss", "difference", "interval", "better", "ms_a_step")  # no run stores them
HEADINGS = {
    "attn/head_similarity": "similarity",
    "attn/future_mass": "future",
    "loss": "mean\nval loss",
    "difference": "median\ndiff",
    "better": "better\nin",
    "parameters": "model\nparameters",
    "costs.parameters": "attention\nparameters",
    "costs.flops": "FLOPs\na token",
    "costs.flops_counted": "FLOPs\ncounted",
    "costs.cached": "numbers\nin cache",
    "ms_a_step": "ms a\nstep",
}
HINT = (
    "Differences: attnlab compare {folder}; heads of one run: attnlab look RUN\n"
    "Other columns: --columns; one row per run: --each"
)
BAD = {
    **{"stopped": "cyan", "diverged": "yellow", "failed": "red", "damaged": "red"},
    **{"interrupted": "magenta"},
}
COMPARE: dict[str, Any] = {
    **{"!=": operator.ne, "<=": operator.le, ">=": operator.ge},
    **{"=": operator.eq, "<": operator.lt, ">": operator.gt},
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


def read_selected(folders: Sequence[Path], conditions: Sequence[str]) -> list[Run]:
    """The runs in directories that meet all conditions; BadInput if there are none."""
    runs = [run for folder in folders for run in read_runs(folder)]
    if selected := select(runs, conditions):
        return selected
    raise BadInput(f"none of {len(runs)} runs match --where {' and '.join(conditions)}")


def _holds(value: Any, sign: str, wanted: str, number: float | None) -> bool:
    if number is not None and isinstance(value, int | float) and not isinstance(value, bool):
        return bool(COMPARE[sign](float(value), number))
    word = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return sign in {"=", "!="} and bool(COMPARE[sign](word, wanted))


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


def _rank(c: Comparison, key: str) -> tuple[int, float, str] | None:
    """A sort key with numbers before texts; None for NaN or no value."""
    number, word = _number(c, key), c.setting.first.values.get(key)
    if number is None:
        return None if word is None else (1, 0.0, str(word))
    return None if math.isnan(number) else (0, number, "")


def _number(c: Comparison, key: str) -> float | None:
    """The number of a setting in a column; None if it has none."""
    if key in ("difference", "interval", "better"):
        return None if not c.pairs else c.better if key == "better" else c.interval[0]
    if key == "ms_a_step":
        return c.setting.milliseconds
    return c.setting.mean("val_loss" if key == "loss" else key)


def check_key(runs: Sequence[Run], key: str) -> None:
    """Refuse, by BadInput, a key that no run has; the message names similar keys."""
    names = {name for run in runs for name in run.values} | {*OF_PAIRS}
    if runs and key not in names:
        near = get_close_matches(key, sorted(names), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see attnlab runs ... --json"
        raise BadInput(f"{key} is neither a setting nor a metric of these runs; {hint}")


def named(runs: Sequence[Run], columns: str) -> list[str]:
    """The columns that a user names, separated by commas, of which `costs` stands for several.

    Raises BadInput for one that no run has.
    """
    typed = [column.strip() for column in columns.split(",")]
    keys = [key for x in typed for key in (COSTS if x == "costs" else (x,))]
    for key in keys:
        check_key(runs, key)
    return keys


def usual(comparisons: Sequence[Comparison], wanted: Sequence[str]) -> list[str]:
    """Those of the wanted columns for which a setting has a value."""
    return [key for key in wanted if any(cell(c, key) not in ("-", "") for c in comparisons)]


def title(runs: Sequence[Run], root: str, of: int) -> str:
    """The number of runs, and the overrides that all of them share."""
    if not runs:
        return f"{root}: none of {counted(of, 'run')} match --where"
    named = settings_with("named")
    typed = [{text for key, text in run.typed.items() if key not in named} for run in runs]
    shared = sorted(set.intersection(*typed))
    common = f", all with {' '.join(shared)}" if shared else ""
    return printable(f"{root}: {counted(len(runs), 'run')}{common}")


def one_by_one(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """A row for each run instead of each setting."""
    rows = []
    for c in comparisons:
        for run in c.setting.runs:
            setting = replace(c.setting, runs=(run,))
            baseline = setting if c.is_baseline else c.baseline
            paired = tuple(pair for pair in c.pairs if pair[0] is run)
            rows.append(replace(c, setting=setting, baseline=baseline, pairs=paired))
    return rows


def table(
    comparisons: Sequence[Comparison], columns: Sequence[str], *, each: bool, room: int = 40
) -> Table:
    """One row per setting, with the mean and standard deviation of each column over its seeds.

    With `each`, settings are single runs, and a row has the run's seed, status and values. No word
    and no number is broken; the lines of labels have up to `room` characters where possible.
    """
    with_status = each or any(r.status != "finished" for c in comparisons for r in c.setting.runs)
    shown = ["run", *["seed"] * each, *["status"] * with_status, *["n"] * (not each), *columns]
    words = {
        "run": lambda c: escape(_broken(c.setting.label, room)),
        "seed": lambda c: escape(printable(str(c.setting.first.seed))),
        "status": lambda c: ends(c.setting),
        "n": lambda c: str(len(c.setting.runs)),
    }
    rows = [
        [words[x](c) if x in words else escape(cell(c, x)) for x in shown] for c in comparisons
    ]
    result = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column, cells in zip(shown, zip(*rows, strict=True), strict=True):
        justify: Any = "left" if column in {"run", "status"} else "right"
        # Only the status wraps: rich would also crop a second column that does.
        name, wraps = heading(comparisons, column), column == "status"
        texts = [name, *(str(render(text)) for text in cells)]
        least = max(cell_len(x) for text in texts for x in text.split(None if wraps else "\n"))
        result.add_column(name, justify=justify, no_wrap=not wraps, min_width=least)
    for n, (c, row) in enumerate(zip(comparisons, rows, strict=True)):
        if n and c.is_baseline and not each:
            result.add_section()
        result.add_row(*row)
    return result


def _broken(label: str, room: int) -> str:
    """A label in lines, broken at spaces, and a longer word after an underscore or a slash."""
    lines = [""]
    for word in re.findall(r"\S+ *", label):
        fits = len(word.rstrip()) <= room
        for piece in [word] if fits else re.findall(r".+?(?:[_/,]+|$)", word):
            if lines[-1] and len(lines[-1] + piece.rstrip()) > room:
                lines.append("")
            lines[-1] += piece
    return "\n".join(lines)


def heading(comparisons: Sequence[Comparison], column: str) -> str:
    """The heading of a column, with line breaks."""
    if column != "interval":
        return HEADINGS.get(column, column.removeprefix("attn/").replace("_", " "))
    # The exact interval needs six seeds; with fewer, a cell shows the lowest and the highest.
    shown = [c for c in comparisons if cell(c, column) not in ("-", "")]
    exact = {not math.isnan(c.interval[1]) for c in shown}
    mixed = "95 % (n > 5)\nor range" if len(exact) == 2 else ""
    return mixed or ("95 %\ninterval" if True in exact else "lowest to\nhighest")


def cell(c: Comparison, key: str) -> str:
    """What a column of the table says of a setting: the mean and standard deviation of a key over
    the seeds, or its texts, or what the pairs of seeds say."""
    number, paired = _number(c, key), key in ("difference", "interval", "better")
    if key in ("loss", "ms_a_step"):
        return "-" if number is None else f"{number:.4f}" if key == "loss" else f"{number:.3g}"
    if not paired:
        return _over_seeds(c.setting, key)
    if c.is_baseline:
        return "baseline" if key == "difference" else ""
    if c.reads_ahead:  # a lower loss is no better prediction
        return "leak" if key == "difference" else "-"
    if number is None or (key == "interval" and len(c.finite) < 2):
        return "-"
    if key == "better":
        return f"{c.better} of {len(c.pairs)}"
    if not math.isfinite(number):
        which = "baseline\ndiverged" if number < 0 else "diverged"
        return which if key == "difference" else "-"
    if key == "difference":
        return f"{number:+.4f}"
    _, low, high = c.interval
    if math.isnan(low):
        signed = [x for x in c.differences if not math.isnan(x)]
        low, high = min(signed), max(signed)
    return f"{low:+.3f} to {high:+.3f}"


def _over_seeds(setting: Setting, key: str) -> str:
    mean, sd = setting.mean(key), setting.sd(key)
    if mean is None or len(setting.runs) == 1:
        words = sorted({shown(run.values[key]) for run in setting.runs if key in run.values})
        return ", ".join(words) or "-"
    if sd is None or not math.isfinite(sd):
        return shown(mean)
    if sd == 0:
        return shown(int(mean) if mean.is_integer() else mean)
    places = max(0, 1 - math.floor(math.log10(sd)))  # two digits of the deviation
    return f"{mean:,.{places}f}±{sd:,.{places}f}" if places < 6 else f"{mean:.6g}±{sd:.0e}"


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


def ends(setting: Setting) -> str:
    """How the runs ended, in rich's markup, with their last steps unless they finished."""
    texts = []
    for status in dict.fromkeys(run.status for run in setting.runs):
        steps = sorted(run.step for run in setting.runs if run.status == status)
        words = status if len(steps) == len(setting.runs) else f"{len(steps)} {status}"
        if status in BAD:
            at = "-".join(str(step) for step in dict.fromkeys((steps[0], steps[-1])))
            words = f"[{BAD[status]}]{words}{f' at {at}' if at != '0' else ''}[/]"
        texts.append(words)
    return ", ".join(texts)
