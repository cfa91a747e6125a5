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
    """The rows of the table as plain values, with all seeds or, with `each`, the directory."""
    found = []
    for c in comparisons:
        first, runs = c.setting.first, c.setting.runs
        row: dict[str, Any] = {"run": c.setting.label, "attn": first.variant}
        if each:
            row |= {"seed": first.seed, "status": first.status, "step": first.step}
            row["folder"] = str(first.folder)
        else:
            row |= {"n": len(runs), "seeds": [run.seed for run in runs]}
            row["statuses"] = [run.status for run in runs]
        for key in ("val_loss" if x == "loss" else x for x in columns if x not in OF_PAIRS[1:]):
            texts = [x for run in runs if (x := run.values.get(key)) is not None]
            mean: dict[str, Any] = {"mean": c.setting.mean(key), "sd": c.setting.sd(key)}
            mean["values"] = c.setting.numbers(key) or texts
            row[key] = first.values.get(key) if each else mean
        median, low, high = c.interval
        difference = {"median": median, "low": low, "high": high, "values": c.differences}
        row |= {"baseline": c.baseline.label if c.baseline else None, "why": c.why}
        row |= {"difference": difference if c.pairs else None, "paired_seeds": c.seeds}
        judged = {"better": c.better, "worse": c.worse, "verdict": c.decision[0]}
        # Losses of models that read ahead are not comparable.
        row |= dict.fromkeys(judged) if c.reads_ahead else judged
        found.append(row | {"ms_a_step": c.setting.milliseconds})
    return found


def as_json(content: Any) -> str:
    """Rows, or any plain values, as JSON; NaN and infinity become strings."""
    plain = json.loads(json.dumps(content), parse_constant=lambda word: str(float(word)))
    return json.dumps(plain, indent=2)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV: one cell a number, and control characters written out."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        flat: dict[str, Any] = {}
        for key, value in row.items():
            if isinstance(value, dict) and "mean" in value:
                texts = ", ".join(sorted({str(x) for x in value["values"]}))
                flat[f"{key}_mean"] = texts if value["mean"] is None else value["mean"]
                flat[f"{key}_sd"] = value["sd"]
            elif key == "difference":
                flat |= {f"{key}_{of}": (value or {}).get(of) for of in ("median", "low", "high")}
            else:
                flat[key] = " ".join(map(str, value)) if isinstance(value, list) else value
        lines.append(
            {printable(k): printable(x) if isinstance(x, str) else x for k, x in flat.items()}
        )
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(lines[0]) if lines else ["run"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()
