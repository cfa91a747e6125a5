"""Tables of runs and of comparisons: as data frames, and as text that fits the terminal."""

import math
import os
import re
import shutil
import textwrap
from collections.abc import Hashable, Sequence

import pandas as pd

from attnlab.errors import printable
from attnlab.runs.compare import BETTER_OR_WORSE, READS_AHEAD, Comparison, equal_within
from attnlab.runs.family import family_of
from attnlab.runs.frame import known_column
from attnlab.runs.groups import groups_of, sweep_of
from attnlab.runs.report import median_of, numbers_of
from attnlab.runs.share import percent, shares_of

# The columns that leave a table which is too wide for the terminal, the first ones first.
# "leak", "verdict", the losses and what --columns names stay.
LEAVE = (
    ("sd",),
    ("n",),
    ("status", "step"),
    ("low", "high"),
    ("holm", "holm_within"),
    ("seeds",),
    ("keeps",),
    ("seed",),
)
NARROWEST_LABEL = 24  # characters, before a column leaves
LONG_VALUE = 12  # characters that all values of a setting share, from which a label omits them
ELLIPSIS = "..."


def comparison_table(
    comparisons: Sequence[Comparison], columns: Sequence[str] = (), within: float | None = None
) -> pd.DataFrame:
    """A row for each setting, as all outputs show it: means over the seeds that did not diverge,
    and the median difference with its interval, in which a seed that diverged counts as infinitely
    bad. Where a model reads the future, the verdict is "leak", and there is no difference. With a
    margin, the column `within` says whether the losses are equal within it. Where several
    questions are judged, `holm` says whether a verdict stands after Holm's correction for all of
    them, and `holm_within` whether an answer on equality does."""
    rows = []
    shares = shares_of(comparisons)
    family = family_of(comparisons, within)  # all verdicts and answers on equality together
    for c in comparisons:
        middle, low, high = c.interval
        if c.reads_ahead:
            middle = low = high = math.nan
        losses = numbers_of(c.runs, "val_loss")
        row: dict[str, object] = {
            "run": c.label,
            "val_loss": losses.mean(),
            "difference": math.nan if c.is_baseline else middle,
            "verdict": verdict_in_a_word(c),
            "low": low,
            "high": high,
            "seeds": seeds_that_agree(c),
            "n": len(c.runs),
            "sd": losses.std(),
            "status": how_they_ended(c.runs),
        }
        row["holm"] = family.mark((c.label, BETTER_OR_WORSE))
        if within is not None and len(c.pairs):
            equality = equal_within(within)
            row["within"] = "leak" if c.reads_ahead else c.decision(equality).answer
            row["holm_within"] = family.mark((c.label, equality))
        if c.label in shares:
            row["keeps"] = shares[c.label].median  # of what attention gives
        for key in columns:
            row[key] = mean_or_texts(c.runs, key)
        rows.append(row)
    table = pd.DataFrame(rows)
    # A share without a number is shown as "-"; other columns without values are left out.
    return table[[name for name in table if name == "keeps" or table[name].notna().any()]]


def seeds_that_agree(c: Comparison) -> str | None:
    """How many seeds are on the side of the median difference, as in "3 of 3 worse"; None without
    pairs, or where a model reads the future."""
    if c.pairs.empty or c.reads_ahead:
        return None
    side, seeds = c.agreement
    return f"{seeds} of {len(c.pairs)} {side}"


def verdict_in_a_word(c: Comparison) -> str:
    """The verdict of a row: baseline, leak, worse, better or open; empty without pairs. A setting
    whose runs read the future is a leak, with or without pairs."""
    if c.reads_ahead or median_of(c.runs, "attn/future_mass") > READS_AHEAD:
        return "leak"
    if c.is_baseline:
        return "baseline"
    return c.decision().answer if len(c.pairs) else ""


def run_table(frame: pd.DataFrame, columns: Sequence[str] = ()) -> pd.DataFrame:
    """A row for each run, as read: what tells it from others of its sweep, the sweep if there are
    several, the weight it puts on the future if a run does, how it ended, and any settings or
    metrics."""
    sweeps = frame["folder"].map(sweep_of)
    label_of: dict[Hashable, str] = {}
    for _, runs in frame.groupby(sweeps, sort=False):
        for group in groups_of(runs):
            label_of |= dict.fromkeys(group.all_runs.index, group.label)
    for group in groups_of(frame):  # a seed may be repeated in another sweep
        label_of |= {index: f"{label_of[index]} (repeated)" for index in group.repeats.index}
    table = pd.DataFrame({"run": pd.Series(label_of)}, index=frame.index)
    if sweeps.nunique() > 1:
        above = os.path.commonpath([*sweeps])
        table["sweep"] = [os.path.relpath(sweep, above) for sweep in sweeps]
    if "attn/future_mass" in frame:
        ahead = pd.to_numeric(frame["attn/future_mass"])
        if (ahead > READS_AHEAD).any():
            table["leak"] = ahead.where(ahead > READS_AHEAD)
    for key in ("seed", "status", "step", "val_loss"):
        if key in frame:
            table[key] = frame[key]
    for key in columns:
        table[key] = known_column(frame, key)
    if frame["reason"].any():
        table["reason"] = frame["reason"]
    return table


def mean_or_texts(runs: pd.DataFrame, key: str) -> float | str:
    """The mean of a column over the seeds that did not diverge; of a column of texts, the
    different ones, with commas between them."""
    values = known_column(runs, key)
    numbers = numbers_of(runs, key)
    if len(numbers) or pd.api.types.is_numeric_dtype(values):
        return float(numbers.mean())
    return ", ".join(sorted({*map(str, values.dropna())}))


def how_they_ended(runs: pd.DataFrame) -> str:
    """How the runs ended, as in "2 finished, 3 diverged at 30-50": at steps from 30 to 50."""
    parts = []
    for status, those in runs.groupby("status", sort=False):
        words = status if len(those) == len(runs) else f"{len(those)} {status}"
        if status in ("stopped", "diverged"):
            steps = sorted({*map(int, those["step"].dropna())})
            first_and_last = dict.fromkeys([*steps[:1], *steps[-1:]])  # one if they are equal
            if first_and_last:
                words += f" at {'-'.join(map(str, first_and_last))}"
        parts.append(words)
    return ", ".join(parts)


def as_text(table: pd.DataFrame, keep: Sequence[str] = ()) -> str:
    """A table as text for the terminal, one line a row, so that no digit is cropped.

    Where it is too wide, labels become shorter, then columns leave in the order of LEAVE, and at
    last those of `keep`, from the right; a last line names those that left. Reasons follow
    below, a line each.
    """
    width = shutil.get_terminal_size().columns
    shown = [name for name in table if name not in ("run", "reason")]
    may_leave = [name for name in shown if name not in keep]
    leaving = [[*filter(may_leave.__contains__, names)] for names in LEAVE]
    leaving += [[name] for name in reversed(keep) if name in shown]
    leaving = [*filter(None, leaving)]
    cells = readable_cells(table)
    room_wanted = min(NARROWEST_LABEL, max(map(len, cells["run"])))
    hidden: list[str] = []
    while True:
        text = cells[shown].to_string(index=False, na_rep="", float_format=four_digits).split("\n")
        room = width - 1 - max(map(len, text))  # of the labels, which a space follows
        labels = shortened_labels(cells["run"].tolist(), room)
        fits = max(map(len, labels)) <= room
        if fits and room >= room_wanted:
            break
        if not leaving or {*shown} <= {*leaving[0]}:  # one column stays, however wide
            break
        hidden += leaving[0]
        shown = [name for name in shown if name not in leaving[0]]
        del leaving[0]
    widest = max(map(len, labels))
    lines = [f"{label:{widest}} {row}" for label, row in zip(["", *labels], text, strict=True)]
    if "difference" in shown and (table["n"] > 1).any():
        lines.append("val_loss is a mean over the seeds, difference the median of their pairs.")
    if hidden:
        hidden = [name for name in table if name in hidden]  # in the order of the table
        lines += textwrap.wrap(
            f"Not shown: {', '.join(hidden)}; --csv FILE has all columns.", width
        )
    if "reason" in table:
        for label, row in zip(labels, table.to_dict("records"), strict=True):
            if row["reason"]:
                of_seed = "" if pd.isna(row.get("seed")) else f" with seed {row['seed']}"
                why = f"{label}{of_seed}: {row['reason']}"
                lines.append(why if len(why) <= width else f"{why[: width - 4]} ...")
    return "\n".join(printable(line.rstrip()) for line in lines)


def readable_cells(table: pd.DataFrame) -> pd.DataFrame:
    """The cells of a table as a reader sees them: the column `keeps` as percentages, "-" without a
    share, and a blank where another value, which is no float, is missing."""
    cells = {}
    for name in table:
        column = table[name]
        if name == "keeps":
            column = pd.Series(["-" if math.isnan(x) else percent(x) for x in column])
        elif not pd.api.types.is_float_dtype(column):
            column = column.astype(object).where(column.notna(), "")
        cells[name] = column
    return pd.DataFrame(cells)


def four_digits(x: float) -> str:
    """A number with four decimals, or a small one with three digits."""
    return f"{x:.4f}" if abs(x) >= 1e-3 or x == 0 else f"{x:.3g}"


def shortened_labels(labels: Sequence[str], room: int) -> list[str]:
    """Labels of at most `room` characters: without the start that all values of a setting share,
    then without their middle. They are longer where they would not stay unique."""
    longest = max(map(len, labels))
    if longest <= room:
        return [*labels]
    labels = without_shared_starts(labels)
    shortest = len(ELLIPSIS) + 2  # a character on each side of it
    for most in range(max(room, shortest), longest):
        short = [without_middle(label, most) for label in labels]
        if len({*short}) == len({*labels}):
            return short
    return [*labels]


def without_shared_starts(labels: Sequence[str]) -> list[str]:
    """Labels in which the long start that all values of a setting share is left out, as in
    path=.../a.txt beside path=.../b.txt."""
    values: dict[str, list[str]] = {}
    for label in labels:
        for key, value in re.findall(r"(\S+)=(\S+)", label):
            values.setdefault(key, []).append(value)
    for key, values_of_key in values.items():
        start = shared_start(values_of_key)
        if len(start) >= LONG_VALUE:
            labels = [x.replace(f"{key}={start}", f"{key}={ELLIPSIS}") for x in labels]
    return [*labels]


def shared_start(texts: Sequence[str]) -> str:
    """The characters with which all texts begin. Of equal texts, which may be one, only the part
    up to the last slash, so that the name of a file is left when the start is taken away."""
    start = os.path.commonprefix([*texts])  # noqa: RUF071  # by characters, as meant
    all_are_equal = len({*texts}) == 1
    return start[: start.rfind("/") + 1] if all_are_equal else start


def without_middle(label: str, most: int) -> str:
    """A label of at most `most` characters: if it is longer, its start and its end around "...".
    Of an odd number of characters that are kept, the start has one more."""
    if len(label) <= most:
        return label
    kept = most - len(ELLIPSIS)
    end_length = kept // 2
    start_length = kept - end_length
    return label[:start_length] + ELLIPSIS + label[len(label) - end_length :]
