"""Equal enough, and how many seeds would decide: against exact sums and against simulations."""

import math
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from attnlab.runs.compare import compare
from attnlab.runs.frame import read_runs
from attnlab.runs.report import all_sentences
from attnlab.runs.seed_statistics import (
    LAST_LOOK,
    LOOKS,
    Answer,
    answer_chances,
    answer_of,
    chance_of_wrong_verdict,
    forecast,
    smallest_difference,
    stand_after_holm,
    verdict_chances,
    verdict_of,
    why_no_forecast,
)
from attnlab.runs.tables import comparison_table
from tests.invented import write_run


def falsely_equal(share_inside: Fraction) -> Fraction:
    """How likely "equal" is at any look, if a seed lies inside the margin with this chance; by
    counting the ways to each number of seeds, in whole numbers."""
    ways = {0: Fraction(1)}  # by the number inside, of those without a verdict
    found = Fraction(0)
    for n in range(1, LAST_LOOK + 1):
        after: dict[int, Fraction] = {}
        for inside, chance in ways.items():
            after[inside] = after.get(inside, Fraction(0)) + chance * (1 - share_inside)
            after[inside + 1] = after.get(inside + 1, Fraction(0)) + chance * share_inside
        ways = after
        if n in LOOKS:
            found += sum(chance for inside, chance in ways.items() if inside >= LOOKS[n])
            ways = {inside: chance for inside, chance in ways.items() if inside < LOOKS[n]}
    return found


def test_a_false_equal_is_rarer_than_one_in_400() -> None:
    """At a true median difference of the margin, at most half of all seeds lie inside."""
    exact = falsely_equal(Fraction(1, 2))
    assert exact <= Fraction(1, 400)
    ours = verdict_chances([], {"yes": 0.5, "above": 0.5})[40]["confirmed"]
    assert ours == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("seen", [0, 3, 9, 10, 15, 20])
def test_chances_are_those_of_all_continuations(seen: int) -> None:
    """Against the rule itself, on every sequence of further answers up to the next look."""
    kinds: tuple[Answer, ...] = ("yes", "below", "above")
    chances: dict[Answer, float] = {"yes": 0.6, "below": 0.1, "above": 0.3}
    start: list[Answer] = [("yes", "yes", "above")[n % 3] for n in range(seen)]
    look = next(n for n in LOOKS if n > seen)
    few = min(look - seen, 7)
    start += ["yes"] * (look - seen - few)
    exact = {"confirmed": 0.0, "refuted": 0.0}
    for rest in product(kinds, repeat=few):
        counted = verdict_of([*start, *rest], look)
        if counted.seeds == look and counted.verdict != "open":
            exact[counted.verdict] += math.prod(chances[answer] for answer in rest)
    found = verdict_chances(start, chances)[look]
    assert (found["confirmed"], found["refuted"]) == pytest.approx(tuple(exact.values()))


@pytest.mark.parametrize(
    ("differences", "margin", "answers"),
    [
        ([0.01, -0.01, 0.0], 0.02, ["yes", "yes", "yes"]),
        ([0.02, -0.02], 0.02, ["neither", "neither"]),  # the bound itself says nothing
        ([0.03, -0.03], 0.02, ["above", "below"]),
        ([math.inf, -math.inf, math.nan], 0.02, ["above", "below", "neither"]),
        ([0.0], 0.0, ["neither"]),
    ],
)
def test_what_a_seed_says_to_equal(
    differences: list[float], margin: float, answers: list[Answer]
) -> None:
    assert [answer_of(x, -margin, margin) for x in differences] == answers


@pytest.mark.parametrize(
    ("differences", "verdict", "within"),
    [
        ([0.01] * 10, "worse", "equal"),  # both hold
        ([0.01, -0.01] * 5, "open", "equal"),
        ([0.05] * 10, "worse", "unequal"),
        ([0.05, -0.05] * 5, "open", "open"),  # beyond the margin, on both sides
        ([0.01] * 9 + [0.05], "worse", "open"),
        ([0.01] * 9 + [0.05] + [0.01] * 10, "worse", "equal"),  # 19 of 20
        ([0.01] * 9, "open", "open"),
        ([0.01] * 9 + [math.inf], "worse", "open"),
    ],
)
def test_equal_within(tmp_path: Path, differences: list[float], verdict: str, within: str) -> None:
    for seed, x in enumerate(differences):
        write_run(tmp_path, "sdpa", seed, 2.0)
        status = "finished" if math.isfinite(x) else "diverged"
        write_run(tmp_path, "unscaled", seed, 2.0 + x, status=status)
    compared = compare(read_runs(tmp_path))
    row = comparison_table(compared, within=0.02).set_index("run").loc["unscaled"]
    assert (row.verdict, row.within) == (verdict, within)
    said = " ".join(all_sentences(compared, 0.02))
    assert ("are equal within 0.02 nats" in said) == (within == "equal")
    assert ("differ by more than 0.02 nats" in said) == (within == "unequal")


def bounds(margin: float | None) -> tuple[float, float]:
    """Of the question whether a loss is worse or, with a margin, whether two are equal."""
    return (0.0, math.inf) if margin is None else (-margin, margin)


def needed(differences: np.ndarray, margin: float | None) -> np.ndarray:
    """The number of seeds at which the rule decides, by row; infinite if it does not."""
    inside = differences > 0 if margin is None else abs(differences) < margin
    above = np.zeros_like(inside) if margin is None else differences > margin
    found = np.full(len(differences), math.inf)
    for n, bar in reversed(LOOKS.items()):
        yes, over = inside[:, :n].sum(axis=1), above[:, :n].sum(axis=1)
        found[(yes >= bar) | (over >= bar) | (n - yes - over >= bar)] = n
    return found


CLEAR = [(4.0, None), (2.2, None), (-2.2, None), (1.2, None), (0.1, None), (0.0, 3.0), (0.5, 1.0)]
# Where two numbers of seeds are about as likely, nine seeds do not tell which it is.
CLOSE = [(1.0, None), (0.8, None), (0.0, 1.0), (0.0, 1.5), (2.0, 1.2), (4.0, 1.0)]


def needed_by_half(mean: float, margin: float | None) -> float:
    """How many seeds the rule needs in half of all simulated experiments."""
    draws = np.random.default_rng(0).normal(mean, 1.0, (4001, 40))
    return median(needed(draws, margin).tolist())


@pytest.mark.parametrize(("mean", "margin"), CLEAR + CLOSE)
def test_the_estimate_is_that_of_a_simulation(mean: float, margin: float | None) -> None:
    """At the true mean and spread, it is what a simulation of the rule needs."""
    chances = answer_chances([mean - 1, mean, mean + 1], *bounds(margin))
    looks = verdict_chances([], chances)
    likely = [n for n, of in looks.items() if of["confirmed"] + of["refuted"] >= 0.5]
    assert (likely or [math.inf])[0] == needed_by_half(mean, margin)


@pytest.mark.parametrize(("mean", "margin"), CLEAR)
def test_nine_seeds_estimate_it_within_a_factor(mean: float, margin: float | None) -> None:
    """In the median, within a factor of 1.5; "not even 40" counts as 60."""
    estimates = []
    for seen in np.random.default_rng(1).normal(mean, 1.0, (21, 9)):
        found = forecast(seen.tolist(), *bounds(margin))
        assert found is not None
        estimates.append(found.seeds or 60)
    ratio = median(estimates) / min(60, needed_by_half(mean, margin))
    assert 1 / 1.5 <= ratio <= 1.5


def test_the_smallest_difference_is_shown_in_four_of_five_cases() -> None:
    shown = smallest_difference([1.0, 2.0, 3.0])  # a standard deviation of 1
    assert shown is not None
    draws = np.random.default_rng(0).normal(shown, 1.0, (20000, 10))
    assert ((draws > 0).all(axis=1)).mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("differences", [[0.1, 0.2], [0.1, 0.1, 0.1], [math.inf] * 3, []])
def test_no_estimate_without_a_spread(differences: list[float]) -> None:
    assert forecast(differences) is None and why_no_forecast(differences)


def test_diverged_seeds_stay_as_frequent() -> None:
    chances = answer_chances([0.5, 1.5, 1.0, math.inf])
    assert chances["yes"] == pytest.approx(1.0, abs=0.02)
    assert sum(chances.values()) == pytest.approx(1)
    assert answer_chances([-0.5, -1.5, -1.0, math.inf])["yes"] > 0.25


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ({"parameters": 1100}, "1,100 parameters beside 1,000 (+10.0 %)"),
        ({"tokens": 320}, "320 tokens beside 640 (-50.0 %)"),
        ({"steps": 4}, "4 steps beside 8 (-50.0 %)"),
        ({}, ""),
    ],
)
def test_unequal_budgets_are_said(tmp_path: Path, arms: dict[str, int], said: str) -> None:
    import json

    write_run(tmp_path, "sdpa", 0, 2.0)
    file = write_run(tmp_path, "unscaled", 0, 2.1) / "metrics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | arms))
    sentences = " ".join(all_sentences(compare(read_runs(tmp_path))))
    assert said in sentences and ("budgets are unequal" in sentences) == bool(said)


@pytest.mark.parametrize(
    ("look", "wrong"), [(10, Fraction(2, 2**10)), (40, 2 * falsely_equal(Fraction(1, 2)))]
)
def test_the_chance_of_a_wrong_verdict_is_exact(look: int, wrong: Fraction) -> None:
    assert chance_of_wrong_verdict(look) == pytest.approx(float(wrong), rel=1e-12)


@pytest.mark.parametrize(
    ("chances", "stands"),
    [
        ([], []),
        ([0.05], [True]),
        ([0.06], [False]),
        ([0.01, 0.04, 0.03, 0.005], [True, False, False, True]),  # .03 > .05 / 2
        ([0.03, 0.01], [True, True]),  # .01 <= .05 / 2, then .03 <= .05
        ([0.002] * 25, [True] * 25),
        ([0.002] * 26, [False] * 26),
        ([0.001] + [1.0] * 49, [True] + [False] * 49),
    ],
)
def test_holm_by_hand(chances: list[float], stands: list[bool]) -> None:
    assert stand_after_holm(chances) == stands


def test_settings_that_differ_in_nothing_are_rarely_called_different() -> None:
    """Of many families of verdicts on noise alone, fewer than the bound have a wrong one."""
    families = 400
    draws = np.random.default_rng(2).normal(0.0, 1.0, (families, 8, 10))
    alike = (draws > 0).all(axis=2) | (draws < 0).all(axis=2)
    bound = 8 * chance_of_wrong_verdict(10)
    assert alike.any(axis=1).mean() == pytest.approx(bound, abs=4 * math.sqrt(bound / families))
