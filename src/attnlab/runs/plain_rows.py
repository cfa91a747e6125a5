"""The rows of tables of runs as plain values, as JSON and as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from attnlab.errors import printable
from attnlab.runs.pairing import Comparison
from attnlab.runs.runs_table import OF_PAIRS


def rows(
    comparisons: Sequence[Comparison], columns: Sequence[str], *, each: bool
) -> list[dict[str, Any]]:
    """The rows of a table as plain values, with all seeds or, with `each`, the directory."""
    table = []
    for c in comparisons:
        first, of_runs = c.setting.first, [run.values for run in c.setting.runs]
        row: dict[str, Any] = {"run": c.setting.label, "attn": first.variant}
        if each:
            row |= {"seed": first.seed, "status": first.status, "step": first.step}
            row |= {"folder": str(first.folder)}
        else:
            row |= {"n": len(of_runs), "seeds": [run.seed for run in c.setting.runs]}
            row |= {"statuses": [run.status for run in c.setting.runs]}
        for key in columns:
            key = "val_loss" if key == "loss" else key
            if key in OF_PAIRS:
                continue
            texts = [x for values in of_runs if (x := values.get(key)) is not None]
            values = c.setting.numbers(key) or texts
            mean = {"mean": c.setting.mean(key), "sd": c.setting.sd(key), "values": values}
            row[key] = of_runs[0].get(key) if each else mean
        table.append(row | _paired(c))
    return table


def _paired(c: Comparison) -> dict[str, Any]:
    """What a comparison says, as plain values."""
    median, low, high = c.interval
    return {
        "baseline": c.baseline.label if c.baseline else None,
        "why": c.why,
        "difference": {"median": median, "low": low, "high": high, "values": c.differences}
        if c.pairs
        else None,
        "paired_seeds": c.seeds,
        # Losses of models that read ahead are not comparable.
        "better": None if c.reads_ahead else c.better,
        "worse": None if c.reads_ahead else c.worse,
        "verdict": None if c.reads_ahead else c.verdict,
        "ms_a_step": c.setting.milliseconds,
    }


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


def _spread(row: dict[str, Any]) -> dict[str, Any]:
    """A row of CSV: one cell a number, and control characters written out."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and "mean" in value:
            texts = ", ".join(sorted({str(x) for x in value["values"]}))
            mean = texts if value["mean"] is None else value["mean"]
            flat |= {f"{key}_mean": mean, f"{key}_sd": value["sd"]}
        elif key == "difference":
            flat |= {f"difference_{of}": (value or {}).get(of) for of in ("median", "low", "high")}
        else:
            flat[key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return {printable(k): printable(x) if isinstance(x, str) else x for k, x in flat.items()}
