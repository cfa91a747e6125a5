"""The losses of any training script as runs, a row a run in the form of `read_runs`, so that a
comparison pairs, counts and forecasts them like the runs of attnlab."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from attnlab.errors import BadInput
from attnlab.runs.compare import compare
from attnlab.runs.compared_runs import ComparedRuns
from attnlab.runs.frame import did_you_mean

NEEDED = ("run", "seed", "value")
WHY_SEEDS = (
    "run each setting with several seeds, the same for all, and name them: from one number a "
    "setting, nobody can tell an improvement from luck"
)


def judge_table(
    table: pd.DataFrame, baseline: str | None = None, within: float | None = None
) -> ComparedRuns:
    """Compare each run of a table with the baseline, by default that of the first row. BadInput if
    the table has one run alone, or not the baseline. `attnlab.api.judge` describes the
    arguments."""
    frame = frame_of_losses(table)
    names = [*dict.fromkeys(frame["attn"])]
    if len(names) < 2:
        raise BadInput(f"the table has nothing but {names[0]}, so there is nothing to compare")
    if baseline is not None and baseline not in names:
        raise BadInput(f"baseline = {baseline} is not in the table{did_you_mean(baseline, names)}")
    frame["baseline"] = baseline or names[0]
    compared = compare(frame, may_differ=["run"], unit=unit_of(table))
    return ComparedRuns(compared, within=within, command="judge")


def read_losses(file: Path) -> pd.DataFrame:
    """The table in a CSV file, as texts by line; BadInput if it is none."""
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, skipinitialspace=True)
    except ValueError as error:  # empty, not in UTF-8, or rows of other lengths
        raise BadInput(f"{file} is no CSV file: {error}") from error
    table.index = pd.RangeIndex(2, len(table) + 2, name="line")  # the first one has the names
    return table


def frame_of_losses(table: pd.DataFrame) -> pd.DataFrame:
    """A table of losses as a frame of runs, as `read_runs` would return it. Of several steps of a
    run and seed, the last one counts. BadInput for missing columns, wrong cells, or two losses of
    one run and seed."""
    missing = [name for name in NEEDED if name not in table]
    if missing:
        there = ", ".join(map(str, table.columns))
        said = f"the table has no column {' and '.join(missing)}; it has {there}"
        raise BadInput(f"{said}; {WHY_SEEDS}" if missing == ["seed"] else f"{said}; rename them")
    if table.empty:
        raise BadInput("the table has no rows")
    rows = pd.DataFrame(
        {"attn": table["run"].map(str).str.strip(), "loss": numbers(table, "value")}
    )
    rows["seed"] = whole_numbers(table, "seed")
    rows["step"] = whole_numbers(table, "step") if "step" in table else math.nan
    if "step" in table:
        rows = rows[rows["step"] == rows.groupby(["attn", "seed"])["step"].transform("max")]
    twice = rows[rows.duplicated(["attn", "seed"])]
    if len(twice):
        name, seed = twice.iloc[0][["attn", "seed"]]
        raise BadInput(
            f"{line_of(twice)}: a second value of {name} with seed {seed}; a seed counts once, "
            "and two settings need two names"
        )
    rows["status"] = np.where(np.isfinite(rows["loss"]), "finished", "diverged")
    rows["loss"] = rows["loss"].where(np.isfinite(rows["loss"]), math.inf)
    rows["folder"] = [
        f"{name}/seed={seed}" for name, seed in zip(rows["attn"], rows["seed"], strict=True)
    ]
    rows["settings"] = [json.dumps({"run": name}) for name in rows["attn"]]
    # There are neither overrides nor directories of settings: no command of attnlab trains them.
    val_loss = rows["loss"].where(np.isfinite(rows["loss"]))
    unknown = {"val_loss": val_loss, "reason": "", "overrides": None, "config_dirs": None}
    return rows.assign(variant=rows["attn"], **unknown).reset_index(drop=True)


def numbers(table: pd.DataFrame, name: str) -> pd.Series:
    """A column as numbers, NaN where a cell is "nan"; BadInput for a cell that is no number."""
    column = table[name]
    empty = table[column == ""]
    if len(empty):
        raise BadInput(
            f"{line_of(empty)}: {name} is empty; leave out the row of a run without a result, "
            "and write nan for one that diverged"
        )
    found = pd.to_numeric(column, errors="coerce").astype(float)
    wrong = table[found.isna() & column.notna() & (column.map(str).str.lower() != "nan")]
    if len(wrong):
        raise BadInput(f"{line_of(wrong)}: {name} = {wrong.iloc[0][name]} is no number")
    return found


def whole_numbers(table: pd.DataFrame, name: str) -> pd.Series:
    """A column as whole numbers; BadInput for a cell that is no whole number."""
    found = numbers(table, name)
    wrong = table[found != found.round()]  # NaN is not equal to itself
    if len(wrong):
        raise BadInput(f"{line_of(wrong)}: {name} = {wrong.iloc[0][name]} is no whole number")
    return found.astype("Int64")


def unit_of(table: pd.DataFrame) -> str:
    """The unit of all values; empty without one. BadInput if there are several."""
    units = [*dict.fromkeys(table["unit"].map(str))] if "unit" in table else [""]
    if len(units) > 1:
        raise BadInput(f"the values have the units {', '.join(units)}; judge one at a time")
    return units[0]


def line_of(rows: pd.DataFrame) -> str:
    """Where the first of some rows stands, for a message: "line 7" of a file, "row 5" of a
    frame."""
    return f"{rows.index.name or 'row'} {rows.index[0]}"
