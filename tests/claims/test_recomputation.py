"""A second judge: what claims came out as, from claim.yaml and rows, by code of its own.

It shares nothing with the engine but the format of the files.
"""

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
import yaml

from attnlab.claims.claim import Claim
from attnlab.claims.finding import Finding
from attnlab.claims.judged_claim import judge_files
from attnlab.claims.reach import verdict_words

CLAIMS = sorted((Path(__file__).parents[2] / "experiments").glob("*/claim.yaml"))
CONTRASTS = {"level": [1], "interaction": [1, -1, -1, 1], "difference": [1, -1]}
Row = dict[str, Any]
NO_ROOM = "no room"  # among the names of a prediction's lengths


@dataclass
class Said:
    """What is said of a prediction at one length."""

    verdict: str
    n: int = 0
    yes: int = 0
    median: float = math.nan
    low: float = math.nan
    high: float = math.nan


def score(row: Row, metric: str, worst: float) -> float:
    """A metric; `worst` after a divergence, and infinity for a loss that is no number."""
    value = worst if row["status"] == "diverged" else row["values"][metric]
    value = math.nan if value is None else float(value)
    return math.inf if metric == "val_loss" and math.isnan(value) else value


def rows_of_arm(
    words: list[str], rates: list[float], pilots: int, by: str, rows: list[Row]
) -> dict[int, Row]:
    """The rows of an arm by seed, at its rate."""
    return rows_and_edge(words, rates, pilots, by, rows)[0]


def rows_and_edge(
    words: list[str], rates: list[float], pilots: int, by: str, rows: list[Row]
) -> tuple[dict[int, Row], bool]:
    """The rows of an arm by seed; with rates, those at the rate with the lowest mean loss, or the
    highest mean accuracy, of as many seeds from 1000 on, of all that were tried. And whether that
    is the lowest or the highest that was tried."""
    sign = -1 if by == "val_accuracy" else 1
    choosing = range(1000, 1000 + pilots)
    by_rate: dict[float, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        rest = dict(word.split("=") for word in row["overrides"][len(words) :])
        if row["overrides"][: len(words)] == words and set(rest) <= {"optim.lr", "optim.min_lr"}:
            by_rate[float(rest.get("optim.lr", 0))][row["seed"]] = row
    if not rates:
        return by_rate[0], False
    losses = {}
    for rate, of_rate in by_rate.items():
        if rate and set(choosing) <= set(of_rate):
            of_pilots = [score(of_rate[seed], by, sign * math.inf) for seed in choosing]
            losses[rate] = sign * fmean(of_pilots)
    if not losses:
        return {}, False
    best = min(sorted(losses), key=losses.__getitem__)
    return by_rate[best], best in (min(losses), max(losses))


def value_of(prediction: Row, scores: list[float]) -> float:
    """The contrast of a seed; of a ladder, the slope of the difference over log10(parameters)."""
    if sizes := prediction.get("sizes"):
        apart = [a - b for a, b in zip(scores[::2], scores[1::2], strict=True)]
        x = [math.log10(size["parameters"]) for size in sizes.values()]
        return float(np.polyfit(x, apart, 1)[0])
    kind = prediction.get("contrast") or ("level" if len(scores) == 1 else "difference")
    if kind in ("min", "max"):
        return sorted(scores)[0 if kind == "min" else -1]
    factors = prediction.get("weights", CONTRASTS[kind])
    return sum(factor * x for factor, x in zip(factors, scores, strict=False))


def side_of(value: float, low: float, high: float) -> str:
    """On which side of the bounds a value is; nothing for one on a bound, and for NaN."""
    if math.isnan(value) or (math.isfinite(value) and value in (low, high)):
        return ""
    if value < low:
        return "low"
    return "high" if value > high else "in"


def judge_again(prediction: Row, values: list[float], most: int) -> Said:
    """Verdict, n, seeds that agree, and the median of n values with its interval."""
    low = prediction.get("above", -math.inf)
    high = prediction.get("below", math.inf)
    n = len(values)
    verdict = "open"
    if prediction.get("always"):
        sides = ["in" if low <= x <= high else "" for x in values]
        if "" in sides:
            verdict = "refuted"
        elif n >= 10:
            verdict = "confirmed"
    else:
        sides = [side_of(x, low, high) for x in values]
        for seeds, bar in ((10, 10), (20, 17), (40, 31)):
            if seeds > min(len(values), most) or verdict != "open":
                continue
            n = seeds
            if sides[:n].count("in") >= bar:
                verdict = "confirmed"
            if max(sides[:n].count("low"), sides[:n].count("high")) >= bar:
                verdict = "refuted"
    if prediction.get("role") == "shown" or most < 10:
        verdict = "shown"
    return Said(verdict, n, sides[:n].count("in"), *interval(values[:n]))


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and the widest pair of order statistics that 95 % of medians lie between."""
    known = sorted(x for x in values if not math.isnan(x))
    n = len(known)
    place = 0
    for r in range(1, 1 + n // 2):
        outside = 2 * sum(math.comb(n, k) for k in range(r)) / 2**n
        if outside <= 0.05:
            place = r
    if not place:
        return median(known), math.nan, math.nan
    return median(known), known[place - 1], known[-place]


def trained_arms(
    claim: Row, prediction: Row, steps: int, rows: list[Row]
) -> list[tuple[dict[int, Row], bool]]:
    """For each arm of a prediction: its rows by seed at its rate, and whether that is the first or
    the last of its grid."""
    found = []
    pilots = prediction.get("rate_seeds", 3)
    sizes = prediction.get("sizes", {"": {"overrides": []}})
    for size, name in product(sizes.values(), prediction["arms"]):
        words = [*claim["arms"][name], *size["overrides"]]
        if "=" in words[0]:
            words = [*claim["base"], *words]
            if steps:
                words += [f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}"]
        rates = size.get("rates") or prediction.get("rates", [])
        by = prediction.get("rate_by", "val_loss")
        found.append(rows_and_edge(words, rates, pilots, by, rows))
    return found


def values_by_seed(claim: Row, prediction: Row, steps: int, rows: list[Row]) -> list[float]:
    """The value of each seed, up to the first that some arm lacks."""
    metric = prediction.get("metric", "val_loss")
    worst = math.inf if metric == "val_loss" else prediction.get("worst", math.nan)
    arms = [of_arm for of_arm, _ in trained_arms(claim, prediction, steps, rows)]
    first = prediction.get("first_seed", claim["first_seed"])
    values = []
    for seed in range(first, first + most_seeds(claim, prediction)):
        of_seed = [arm[seed] for arm in arms if seed in arm]
        measured = [x["status"] == "diverged" or metric in x["values"] for x in of_seed]
        if len(of_seed) < len(arms) or not all(measured):
            break
        values.append(value_of(prediction, [score(row, metric, worst) for row in of_seed]))
    return values


def most_seeds(claim: Row, prediction: Row) -> int:
    """How many seeds a prediction may use."""
    return prediction.get("seeds") or claim.get("most_seeds", 10)


def recomputed(claim: Row, rows: list[Row]) -> dict[str, dict[str, Said]]:
    """What is said of each prediction at each length, by prediction and by name."""
    found: dict[str, dict[str, Said]] = {}
    for key, prediction in claim["predictions"].items():
        found[key] = {}
        count = most_seeds(claim, prediction)
        for steps in prediction.get("lengths") or [0]:
            values = values_by_seed(claim, prediction, steps, rows)
            if values:
                said = judge_again(prediction, values, count)
            else:
                said = Said("shown" if prediction.get("role") == "shown" or count < 10 else "open")
            found[key][f"{key}_{steps}" if steps else key] = said
    return found


def verdict_on_claim(claim: Row, *readings: dict[str, dict[str, Said]]) -> str:
    """The verdict on the sentence; a prediction counts if all its lengths and readings agree."""
    if claim.get("withdrawn"):
        return "undecided"
    truth = defaultdict[str, list[bool | None]](list)  # by role; None: undecided
    for key, prediction in claim["predictions"].items():
        role = prediction.get("role", "for")
        verdicts = {said.verdict for reading in readings for said in reading.get(key, {}).values()}
        says_true = {"confirmed": role != "against", "refuted": role == "against"}
        truth[role].append(says_true.get(verdicts.pop()) if len(verdicts) == 1 else None)
    if not all(truth["control"]):
        return "undecided"
    deciding = truth["for"] + truth["against"]
    if False in deciding:
        return "holds in part" if True in deciding else "does not hold"
    return "undecided" if None in deciding else "holds"


def says_true(prediction: Row, verdicts: set[str]) -> bool | None:
    """Whether a prediction says that its sentence is true; None if it says neither."""
    is_against = prediction.get("role", "for") == "against"
    if verdicts == {"confirmed"}:
        return not is_against
    return is_against if verdicts == {"refuted"} else None


def reach_again(
    claim: Row, rows: list[Row], *readings: dict[str, dict[str, Said]]
) -> dict[str, set[tuple[str, Any]]]:
    """By the key of each prediction that decides: what it lacks, as ("steps", 300), ("rate", ...)
    and ("processor", ...)."""
    of_length = {}  # (key, steps of the longest run) -> what it asks, and its answer there
    trained: dict[str, list[tuple[int, bool]]] = {}  # key -> steps, and whether a rate is an edge
    statuses: dict[str, set[str]] = defaultdict(set)  # key -> how its runs ended
    for key, prediction in claim["predictions"].items():
        if prediction.get("role", "for") not in ("for", "against", "control"):
            continue
        trained[key] = []
        for steps in prediction.get("lengths") or [0]:
            arms = trained_arms(claim, prediction, steps, rows)
            known = [row["values"].get("steps", 0) for of, _ in arms for row in of.values()]
            longest = max(known, default=0)
            trained[key].append((longest, any(edge for _, edge in arms)))
            statuses[key] |= {row["status"] for of, _ in arms for row in of.values()}
            asked = []
            for name in prediction["arms"]:
                words = claim["arms"][name]
                asked.append([word for word in words if not word.startswith("trainer.")])
            question = (asked, prediction.get("metric", "val_loss"), prediction.get("sizes"))
            verdicts = {
                said.verdict for reading in readings for said in reading.get(key, {}).values()
            }
            of_length[key, longest] = (question, says_true(prediction, verdicts))
    lacks: dict[str, set[tuple[str, Any]]] = {}
    for key, prediction in claim["predictions"].items():
        if prediction.get("role", "for") not in ("for", "against"):
            continue
        lacks[key] = set()
        if claim.get("exempt") or prediction.get("exempt"):
            continue
        own = {steps for steps, _ in trained[key] if steps}
        answers = [of_length[key, steps] for steps, _ in trained[key]]
        alike = {n for (_, n), asked in of_length.items() if n and asked == answers[0]} | own
        if answers[0][1] is None:
            alike = own
        if own and 4 * min(alike) > max(alike) and statuses[key] != {"stopped"}:
            lacks[key] |= {("steps", steps) for steps in own}
        if own and not prediction.get("rates"):
            lacks[key].add(("rate", "at one rate"))
        elif any(edge for _, edge in trained[key]):
            lacks[key].add(("rate", "at a rate at the end of its grid"))
        if set(readings[1].get(key, {})) != set(readings[0][key]) - {NO_ROOM}:
            lacks[key].add(("processor", "on one processor"))
    return lacks


def words_again(
    claim: Row, verdict: str, rows: list[Row], *readings: dict[str, dict[str, Said]]
) -> str:
    """What the words of a verdict must name, as "at 300 steps, on one processor"."""
    sides: dict[bool | None, list[set[tuple[str, Any]]]] = defaultdict(list)
    for key, lacking in reach_again(claim, rows, *readings).items():
        verdicts = {said.verdict for reading in readings for said in reading.get(key, {}).values()}
        sides[says_true(claim["predictions"][key], verdicts)].append(lacking)
    needed = sides[True] if verdict == "holds" else []
    if verdict in ("holds in part", "does not hold"):  # one of each side, that lacks least
        for side in filter(None, (sides[True], sides[False])):
            needed.append(min(side, key=lambda lacking: len(dict(lacking))))
    found: dict[str, list[Any]] = defaultdict(list)
    for lacking in needed:
        for kind, word in sorted(lacking, key=str):
            found[kind] += [] if word in found[kind] else [word]
    words = []
    if steps := [f"{number:,}" for number in sorted(found["steps"])]:
        several = f"at one length each ({', '.join(steps)} steps)"
        words.append(several if len(steps) > 1 else f"at {steps[0]} steps")
    return ", ".join([*words, *found["rate"], *found["processor"]])


def without_room(prediction: Row, said: Said, baseline: list[float]) -> bool:
    """Whether a help by more than a bound was denied where the second arm leaves no room for it:
    too few seeds are left to confirm it."""
    wanted = prediction.get("above", -math.inf)
    if prediction.get("unit") != "of the answers" or len(prediction["arms"]) != 2 or wanted <= 0:
        return False
    judged = baseline[: said.n]
    room = sum(wanted < 1 - score for score in judged)
    return said.verdict == "refuted" and room < {10: 10, 20: 17, 40: 31}[said.n]


def lines_of(file: Path) -> list[Row]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def repeated(claim: Row, rows: list[Row], again: list[Row]) -> dict[str, dict[str, Said]]:
    """What the rows of another instruction set say of what decides, at the rates of the pilots."""
    pilots = [row for row in rows if row["seed"] >= 1000]
    found = {}
    for key, said in recomputed(claim, pilots + again).items():
        if claim["predictions"][key].get("role", "for") in ("for", "against", "control"):
            found[key] = {name: x for name, x in said.items() if x.n >= 10}
    return found


def same(finding: Finding, said: Said) -> bool:
    """Whether both judges say the same of a prediction."""
    mine = finding.tally
    if said.verdict != finding.verdict or (said.n > 0) != bool(finding.values):
        return False
    if not finding.values:
        return True
    numbers = [mine.n, mine.agree, mine.median, mine.low, mine.high]
    theirs = [said.n, said.yes, said.median, said.low, said.high]
    return theirs == pytest.approx(numbers, nan_ok=True)


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_a_second_judge_says_the_same_and_sees_a_changed_row(file: Path) -> None:
    judged = judge_files(Claim.read(file))
    claim = yaml.safe_load(file.read_text(encoding="utf-8"))
    rows = lines_of(file.with_name("rows.jsonl"))
    again = lines_of(file.with_name("rows-again.jsonl"))
    first_time = recomputed(claim, rows)
    second_time = repeated(claim, rows, again)
    for finding in judged.findings:
        prediction = claim["predictions"][finding.key]
        if prediction.get("role", "for") == "for" and len(finding.scores) == 2:
            said = first_time[finding.key][finding.name]
            if without_room(prediction, said, [*finding.scores.values()][1]):
                assert judged.why_open(finding)
                first_time[finding.key][NO_ROOM] = Said("open")
    verdict = verdict_on_claim(claim, first_time, second_time)
    assert verdict == judged.verdict
    words = words_again(claim, verdict, rows, first_time, second_time)
    assert f"{verdict} {words}".strip() == verdict_words(judged)
    first_time = recomputed(claim, rows)
    for reading, findings in (
        (first_time, {finding.name: finding for finding in judged.findings}),
        (second_time, judged.again),
    ):
        by_name = {name: said for of_key in reading.values() for name, said in of_key.items()}
        assert by_name.keys() == findings.keys()
        assert [name for name, said in by_name.items() if not same(findings[name], said)] == []
    if not judged.findings[0].values:
        return  # not trained yet: there is no row to change
    first = judged.findings[0]
    # The first arm, of a ladder at its last size: a lower loss there lowers the value, or raises
    # it if the weight of the arm is negative.
    is_raised = first.prediction.weights and first.prediction.weights[0] < 0
    farthest = (min if is_raised else max)(first.values)
    of_first_arm = [*first.rows.values()][-len(first.prediction.arms)]
    changed = of_first_arm[first.values.index(farthest)]
    for row in rows:  # a planted error
        if row["seed"] == changed["seed"] and row["overrides"] == changed["overrides"]:
            row["values"] = row["values"] | {first.prediction.metric: -1e9}
    assert not same(first, recomputed(claim, rows)[first.key][first.name])
