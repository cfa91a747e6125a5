"""What `--json` prints: one shape for all commands, which docs/json.md describes."""

import json
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

import attnlab
from attnlab.runs.best_rate import Best, Grid
from attnlab.runs.compare import BETTER_OR_WORSE, Comparison, Question, equal_within
from attnlab.runs.family import Verdicts, family_of
from attnlab.runs.groups import Group, overrides_of, settings_of, sweep_of
from attnlab.runs.report import all_sentences, numbers_of
from attnlab.runs.seed_statistics import forecast, smallest_difference, why_no_forecast
from attnlab.runs.share import shares_of
from attnlab.runs.tables import mean_or_texts, run_table, verdict_in_a_word

VERSION = 1  # of the shape; a key that is added does not change it


def document(command: str, exit_code: int, content: Mapping[str, object]) -> dict[str, object]:
    """The content of a command's answer under its head, as values that JSON can write."""
    head = {"schema": VERSION, "attnlab": attnlab.__version__, "command": command}
    return head | {"exit_code": exit_code} | {key: json_value(x) for key, x in content.items()}


def json_text(found: Mapping[str, object]) -> str:
    """A document as JSON text. ValueError for NaN or infinity, which `json_value` replaces."""
    return json.dumps(found, indent=2, allow_nan=False)


def json_value(value: object) -> object:
    """A value that JSON can write: null for a number that is not known, "inf" or "-inf" for an
    infinite one."""
    if isinstance(value, Mapping):
        return {str(key): json_value(x) for key, x in value.items()}
    if isinstance(value, list | tuple | set | np.ndarray):
        return [json_value(x) for x in value]
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return None
        return float(value) if math.isfinite(value) else str(float(value))
    return str(value)


def runs_document(
    frame: pd.DataFrame, refused: Sequence[Mapping[str, str]] = ()
) -> dict[str, object]:
    """The answer of `attnlab runs --json`: of each run its label, sweep, settings, overrides and
    those columns that have a value; and what sweeps `refused` to run. A damaged run has neither
    settings nor overrides."""
    table = run_table(frame)
    runs = []
    for index, row in frame.iterrows():
        run: dict[str, object] = {}
        for name, value in row.items():
            content = json_value(value)
            # Both are texts in the frame, and follow below as data.
            if name not in ("settings", "overrides") and content is not None:
                run[name] = content
        if row["status"] != "damaged":
            run["overrides"] = [*overrides_of(row).values()]
            run["settings"] = settings_of(row)
        label = table["run"][index]
        sweep = str(sweep_of(row["folder"]))
        runs.append({"run": label, "sweep": sweep, "leak": is_leak(table, index), **run})
    return document("runs", 0, {"runs": runs, "refused": refused})


def is_leak(table: pd.DataFrame, index: Hashable) -> bool:
    """Whether a run, a row of `run_table`, reads the future: the table has its weight then, and
    NaN for a run that does not."""
    return "leak" in table and not math.isnan(table["leak"][index])


def comparison_content(
    comparisons: Sequence[Comparison],
    columns: Sequence[str] = (),
    within: float | None = None,
    best: Best | None = None,
) -> dict[str, object]:
    """The answer of `attnlab compare --json`, without its head: what table and sentences say, with
    all digits."""
    shares = shares_of(comparisons)
    family = family_of(comparisons, within)
    settings = []
    for c in comparisons:
        row = {
            "run": c.label,
            "baseline": None if c.baseline is None else c.baseline.label,
            "why": c.why,
            "verdict": verdict_in_a_word(c),
            **group_content(c.group),
            **difference_content(c, within, family),
            "keeps": None,
            "columns": {key: mean_or_texts(c.runs, key) for key in columns},
        }
        if c.label in shares:
            share = shares[c.label]
            row["keeps"] = {
                "median": share.median,
                "low": share.low,
                "high": share.high,
                "by_seed": share.by_seed,
                "why": share.why,
            }
        settings.append(row)
    return {
        "settings": settings,
        "sentences": all_sentences(comparisons, within),
        "within": within,
        "unit": comparisons[0].unit,
        "chance_of_any_wrong_verdict": family.any_wrong,
        "best": [] if best is None else best.sentences(),
        "tried": [] if best is None else [grid_content(best.key, grid) for grid in best.grids],
    }


def grid_content(key: str, grid: Grid) -> dict[str, object]:
    """The values of a setting that were tried for one variant, and which was the best."""
    values = []
    for value, mean in grid.means.items():
        by_seed = grid.losses[value].dropna().to_dict()
        values.append({"value": value, "mean": mean, "by_seed": by_seed})
    return {
        "run": grid.label,
        "setting": key,
        "best": grid.best,
        "at_edge": grid.is_at_edge,
        "values": values,
    }


def group_content(group: Group) -> dict[str, object]:
    """What the runs of a group are and how they ended."""
    losses = numbers_of(group.runs, "val_loss")
    damaged = group.is_damaged
    return {
        "attn": None if damaged else group.variant,
        "overrides": [] if damaged else [*group.overrides.values()],
        "settings": {} if damaged else group.settings,
        "val_loss": losses.mean(),
        "sd": losses.std(),
        "n": len(group.runs),
        "status": group.runs["status"].value_counts().to_dict(),
        "folders": group.runs["folder"].tolist() if group.has_command else [],
        "repeats": group.repeats["folder"].tolist(),
    }


def difference_content(c: Comparison, within: float | None, family: Verdicts) -> dict[str, object]:
    """What pairing by seed and counting seeds found: the verdict's seeds, the losses of each pair,
    the median difference unless a model reads the future, and equality within a margin."""
    found: dict[str, object] = {
        "difference": None,
        "by_seed": [],
        "smallest_difference_of_ten": None,
        "within": None,
        **answer_content(c, BETTER_OR_WORSE, family),
    }
    if c.pairs.empty:
        return found
    by_seed = c.pairs[["seed", "loss", "loss_base"]].assign(difference=c.differences)
    found["by_seed"] = by_seed.to_dict("records")
    if c.reads_ahead:
        return found
    middle, low, high = c.interval
    found["difference"] = {
        "median": middle,
        "low": low,
        "high": high,
        "worse": (c.differences > 0).sum(),
        "better": (c.differences < 0).sum(),
        "n": len(c.pairs),
    }
    if c.decision().answer == "open":
        found["smallest_difference_of_ten"] = smallest_difference(c.differences.tolist())
    if within is not None:
        equality = equal_within(within)
        found["within"] = {
            "verdict": c.decision(equality).answer,
            **answer_content(c, equality, family),
        }
    return found


def answer_content(c: Comparison, question: Question, family: Verdicts) -> dict[str, object]:
    """What the answer to a question rests on: how many seeds, and whether it stands beside the
    other verdicts. Where it is open, how many seeds would probably decide, or why that is not
    known."""
    decision = c.decision(question)
    found: dict[str, object] = {
        "decided_by": decision.seeds,
        "holm": family.mark((c.label, question)),
        "forecast": None,
        "why_no_forecast": "",
    }
    if decision.answer != "open" or c.pairs.empty or c.reads_ahead:
        return found
    differences = c.differences.tolist()
    likely = forecast(differences, question.low, question.high)
    if likely is None:
        return found | {"why_no_forecast": why_no_forecast(differences)}
    return found | {"forecast": {"seeds": likely.seeds, "chance": likely.chance}}
