"""A second judge: what claims came out as, from claim.yaml and rows.jsonl, by code of its own."""

import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
import yaml

from attnlab.claims.claim import Claim
from attnlab.claims.judged_claim import Finding, judge_claim
from attnlab.claims.rows import Rows

CLAIMS = sorted((Path(__file__).parents[2] / "experiments").glob("*/claim.yaml"))
Row = dict[str, Any]


def score(row: Row, metric: str, worst: float) -> float:
    """A metric; `worst` after a divergence, and infinity for a loss that is no number."""
    value = worst if row["status"] == "diverged" else row["values"][metric]
    value = math.nan if value is None else float(value)
    return math.inf if metric == "val_loss" and math.isnan(value) else value


def rows_of_arm(words: list[str], rates: list[float], rows: list[Row]) -> dict[int, Row]:
    """The rows of an arm by seed; with rates, those at the rate with the lowest mean loss of the
    seeds 1000 to 1002, of all that were tried."""
    by_rate: dict[float, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        rest = dict(word.split("=") for word in row["overrides"][len(words) :])
        if row["overrides"][: len(words)] == words and set(rest) <= {"optim.lr", "optim.min_lr"}:
            by_rate[float(rest.get("optim.lr", 0))][row["seed"]] = row
    if not rates:
        return by_rate[0]
    tried = sorted(r for r, of in by_rate.items() if r and {1000, 1001, 1002} <= set(of))
    losses = [fmean(score(by_rate[r][s], "val_loss", math.inf) for s in range(1000, 1003))
              for r in tried]  # fmt: skip
    return by_rate[tried[losses.index(min(losses))]] if tried else {}


def value(p: Row, x: list[float]) -> float:
    """The contrast of a seed."""
    kind = p.get("contrast", "level" if len(x) == 1 else "")
    if kind in ("min", "max"):
        return sorted(x)[0 if kind == "min" else -1]
    factors = {"level": [1], "interaction": [1, -1, -1, 1]}.get(kind, [1, -1])
    return sum(w * each for w, each in zip(p.get("weights", factors), x, strict=False))


def side(x: float, low: float, high: float) -> str:
    """On which side of the bounds a value is; nothing for NaN and for a bound itself."""
    if math.isnan(x) or (math.isfinite(x) and x in (low, high)):
        return ""
    if x < low:
        return "low"
    return "high" if x > high else "in"


def judged(p: Row, values: list[float], most: int) -> tuple[Any, ...]:
    """Verdict, n, seeds that agree, and the median of n values with its interval."""
    low, high, n = p.get("above", -math.inf), p.get("below", math.inf), len(values)
    if p.get("always"):
        signs = ["in" if low <= x <= high else "" for x in values]
        verdict = "open"
        if "" in signs:
            verdict = "refuted"
        elif n >= 10:
            verdict = "confirmed"
    else:
        signs = [side(x, low, high) for x in values]
        verdict = "open"
        for seeds, bar in ((10, 10), (20, 17), (40, 31)):
            if seeds <= min(len(values), most) and verdict == "open":
                n, counts = seeds, [signs[:seeds].count(x) for x in ("in", "low", "high")]
                verdict = "confirmed" if counts[0] >= bar else verdict
                verdict = "refuted" if max(counts[1:]) >= bar else verdict
    x = sorted(each for each in values[:n] if not math.isnan(each))
    outside = [2 * sum(math.comb(len(x), k) for k in range(r)) / 2 ** len(x)
               for r in range(1 + len(x) // 2)]  # fmt: skip
    r = max(r for r, p in enumerate(outside) if p <= 0.05)
    interval = (x[r - 1], x[-r]) if r else (math.nan, math.nan)
    shown = p.get("role") == "shown" or most < 10
    return "shown" if shown else verdict, n, signs[:n].count("in"), median(x), *interval


def recomputed(file: Path, rows: list[Row]) -> tuple[str, dict[str, tuple[Any, ...]]]:
    """The verdict on a claim, and what is said of each prediction at each length."""
    claim, found = yaml.safe_load(file.read_text(encoding="utf-8")), {}
    truth = defaultdict[str, list[bool | None]](list)  # by role; None: undecided
    for name, p in claim["predictions"].items():
        role, count = p.get("role", "for"), p.get("seeds") or claim.get("most_seeds", 10)
        metric, first = p.get("metric", "val_loss"), p.get("first_seed", claim["first_seed"])
        worst = math.inf if metric == "val_loss" else p.get("worst", math.nan)
        said, without_rows = set(), ("shown" if role == "shown" or count < 10 else "open",)
        for steps in p.get("lengths") or [0]:
            end = [f"trainer.{x}={steps}" for x in ("max_steps", "val_check_interval") if steps]
            arms = []
            for own in (claim["arms"][arm] for arm in p["arms"]):
                words = [*claim["base"], *own, *end] if "=" in own[0] else own
                arms.append(rows_of_arm(words, p.get("rates", []), rows))
            values = []
            for seed in range(first, first + count):
                of = [arm[seed] for arm in arms if seed in arm]
                measured = [x["status"] == "diverged" or metric in x["values"] for x in of]
                if len(of) < len(arms) or not all(measured):
                    break
                values.append(value(p, [score(row, metric, worst) for row in of]))
            what = judged(p, values, count) if values else without_rows
            found[f"{name}_{steps}" if steps else name] = what
            said.add(what[0])
        says_true = {"confirmed": role != "against", "refuted": role == "against"}
        truth[role].append(says_true.get(said.pop()) if len(said) == 1 else None)
    deciding = truth["for"] + truth["against"]
    verdict = "undecided" if None in deciding else "holds"
    if False in deciding:
        verdict = "holds in part" if True in deciding else "does not hold"
    return verdict if all(truth["control"]) else "undecided", found


def same(finding: Finding, found: tuple[Any, ...]) -> bool:
    """Whether both judges say the same of a prediction."""
    x = finding.outcome
    numbers = [x.n, x.yes, x.median, x.low, x.high] if finding.values else []
    return found[0] == finding.verdict and [*found[1:]] == pytest.approx(numbers, nan_ok=True)


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_a_second_judge_says_the_same_and_sees_a_changed_row(file: Path) -> None:
    lines = file.with_name("rows.jsonl")
    judged = judge_claim(Claim.read(file), Rows(lines))
    findings = judged.findings
    rows = [row | {"overrides": [*run.overrides]} for run, row in Rows(lines).items()]
    again, found = recomputed(file, rows)
    assert again == judged.verdict
    assert found.keys() == {finding.name for finding in findings}
    assert [x.name for x in findings if not same(x, found[x.name])] == []
    first = findings[0]
    changed = first.rows[first.prediction.arms[0]][first.values.index(max(first.values))]
    for row in rows:  # a planted error
        if row["seed"] == changed["seed"] and row["values"] == changed["values"]:
            row["values"] = row["values"] | {first.prediction.metric: -1e9}
    assert not same(first, recomputed(file, rows)[1][first.name])
