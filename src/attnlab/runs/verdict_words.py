"""Says in sentences what counting seeds decides, and how many seeds would decide the rest."""

import math
from collections.abc import Sequence

from attnlab.runs.compare import Comparison, Question, equal_within, in_question
from attnlab.runs.family import LEVEL, family_of, questions_of
from attnlab.runs.seed_statistics import (
    FIRST_LOOK,
    LAST_LOOK,
    LOOKS,
    forecast,
    smallest_difference,
)


def verdict_sentence(c: Comparison) -> str:
    """Whether counting seeds calls a setting better or worse, or not yet; empty with fewer than
    ten seeds, or for a model that reads the future."""
    verdict, judged = c.decision()  # judged: how many seeds it is based on
    if not judged or c.baseline is None:
        return ""
    part = c.differences.iloc[:judged]
    counts = f"{(part > 0).sum()} worse and {(part < 0).sum()} better of {judged_seeds(c, judged)}"
    counts += f"; a verdict needs {LOOKS[judged]} of {judged}"  # so many must agree
    if verdict == "open":
        return f"{c.label}: no verdict ({counts})."
    return f"{c.label} is {verdict} than {c.baseline.label} in most seeds ({counts})."


def within_sentence(c: Comparison, margin: float) -> str:
    """Whether counting seeds decides that the losses of a setting and its baseline are equal
    within a margin; empty with fewer than ten seeds, or for a model that reads the future."""
    verdict, judged = c.decision(equal_within(margin))
    if not judged or c.baseline is None or c.is_baseline:
        return ""
    inside = (c.differences.iloc[:judged].abs() < margin).sum()
    counts = f"{inside} of {judged_seeds(c, judged)} differ by less"
    counts += f"; a verdict needs {LOOKS[judged]} of {judged}"
    pair = f"{c.label} and {c.baseline.label}"
    size = c.in_unit(f"{margin:g}")
    if verdict == "equal":
        return f"{pair} are equal within {size} in most seeds ({counts})."
    if verdict == "unequal":
        return f"{pair} differ by more than {size} in most seeds ({counts})."
    return f"{pair}: no verdict on equality within {size} ({counts})."


def judged_seeds(c: Comparison, judged: int) -> str:
    """The seeds that a verdict is based on, in words."""
    return f"the first {judged} seeds" if judged < len(c.pairs) else f"{judged} seeds"


def family_sentence(comparisons: Sequence[Comparison], within: float | None = None) -> str:
    """How likely any of the verdicts is wrong, and which of several stand together; empty where
    nothing is decided."""
    family = family_of(comparisons, within)
    if not family.decided:
        return ""
    error = f"{100 * family.any_wrong:.2g} %"
    if len(family.stands) == 1:
        return f"The chance that this verdict is wrong is at most {error}."
    fallen = [label for label, question in family.decided if not family.stands[label, question]]
    stand = "each verdict stands"
    if fallen:
        stand = f"the verdict on {in_a_list(fallen)} does not stand"
    judged = f"{len(family.stands)} questions judged"
    holm = f"after Holm's correction ({100 * LEVEL:.0f} % in all), {stand}"
    return f"{judged}: the chance of any wrong verdict is at most {error}; {holm}."


def forecast_sentence(comparisons: Sequence[Comparison], within: float | None = None) -> str:
    """How many seeds will probably decide what is open; empty where nothing is, or the seeds say
    too little about their spread."""
    by_seeds: dict[int | None, list[str]] = {}
    not_by_ten: dict[str, None] = {}  # a set in order
    for c in in_question(comparisons):
        for question in questions_of(within):
            found = forecast(c.differences.tolist(), question.low, question.high)
            if found is None or c.decision(question).answer != "open" or c.is_about_equal:
                continue
            by_seeds.setdefault(found.seeds, []).append(asked_of(c, question))
            if found.seeds != FIRST_LOOK:
                not_by_ten[smallest_in_words(c)] = None
    if not by_seeds:
        return ""
    said = []
    for n in sorted(by_seeds, key=lambda n: n or math.inf):
        many = f"even {LAST_LOOK} will probably not" if n is None else f"{n} will probably"
        said.append(f"{many} decide {in_a_list(by_seeds[n])}")
    text = f"If more seeds vary like these, {'; '.join(said)}."
    if not_by_ten:
        text += f" Ten usually show a difference of {in_a_list([*not_by_ten])}, or a larger one."
    return text


def asked_of(c: Comparison, question: Question) -> str:
    """The question that seeds are asked about a setting, as the end of a sentence: "whether it is
    better or worse"."""
    if question.inside == "equal":
        return f"whether {c.label} is equal within {question.high:g}"
    return f"whether {c.label} is better or worse"


def smallest_in_words(c: Comparison) -> str:
    """The smallest difference that ten seeds usually show, and the setting: "0.01 nats (linear)".
    The differences must have a spread, as those with a forecast have."""
    smallest = smallest_difference(c.differences.tolist())
    assert smallest is not None, "there is a forecast, so there is a spread"
    return f"{c.in_unit(f'{smallest:.2g}')} ({c.label})"


def in_a_list(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
