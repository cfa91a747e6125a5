"""How far a verdict reaches: the steps, rates and processors that its words must name.

A verdict on trained losses or accuracies needs no more words only if it has two lengths, n and
4 n steps, each arm at its own best rate for that length, and two processors, or two instruction
sets of one. No length is named where a callback ended all runs. `verdict_words` says what a
verdict lacks, and `reach_line` on which models it stands.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from attnlab.claims.claim import RATE_SEEDS
from attnlab.claims.finding import Finding, rows_of_findings
from attnlab.claims.judge import DECIDE, Evidence
from attnlab.claims.judged_claim import JudgedClaim
from attnlab.claims.trials import (
    Row,
    instruction_set_of,
    is_measurement,
    processor_of,
    without_rate,
)
from attnlab.claims.work import arm_settings

LONGER = 4  # a second length is so many times the first
EXEMPT = {
    "exact": "it is about equal numbers",
    "leak": "it is about a leak",
    "impossible": "it is about what can be at all",
    "budget": "it names its steps itself",
}
STEPS_OF_ARM = ("trainer.max_steps=", "trainer.val_check_interval=")


@dataclass(frozen=True)
class Limits:
    """What a verdict lacks; empty where it lacks nothing."""

    lengths: tuple[int, ...] = ()  # numbers of steps of what was tested at one length
    rates: tuple[str, ...] = ()  # such as "at one rate"
    processors: tuple[str, ...] = ()

    def __add__(self, other: "Limits") -> "Limits":
        """What two verdicts lack together."""
        return Limits(
            tuple(sorted({*self.lengths, *other.lengths})),
            tuple(dict.fromkeys([*self.rates, *other.rates])),
            tuple(dict.fromkeys([*self.processors, *other.processors])),
        )

    @property
    def count(self) -> int:
        """How many of the three kinds of limits there are."""
        return bool(self.lengths) + bool(self.rates) + bool(self.processors)

    def __str__(self) -> str:
        """The words that a verdict needs, such as "at 300 steps, at one rate"."""
        words = []
        if len(self.lengths) == 1:
            words.append(f"at {self.lengths[0]:,} steps")
        elif self.lengths:  # several predictions, each of which was tested at one of the lengths
            each = ", ".join(f"{steps:,}" for steps in self.lengths)
            words.append(f"at one length each ({each} steps)")
        return ", ".join([*words, *self.rates, *self.processors])


def verdict_words(judged: JudgedClaim) -> str:
    """The verdict on a sentence, with its reach: "does not hold at 300 steps, at one rate"."""
    return f"{judged.verdict} {limits_of(judged)}".strip()


def limits_of(judged: JudgedClaim) -> Limits:
    """What the verdict on a sentence lacks.

    It reaches as far as the predictions that it needs: "holds" needs all of them, "does not hold"
    one that says so, and "holds in part" one on each side. So of those, the one that reaches
    farthest counts.
    """
    if judged.verdict == "undecided":
        return Limits()
    evidence = judged.evidence()
    true = [limits_of_prediction(judged, key) for key, x in evidence.items() if x.is_for]
    false = [limits_of_prediction(judged, key) for key, x in evidence.items() if x.is_against]
    if judged.verdict == "holds":
        return sum(true, Limits())
    farthest = [min(side, key=lambda limits: limits.count) for side in (true, false) if side]
    return sum(farthest, Limits())


def limits_of_prediction(judged: JudgedClaim, key: str) -> Limits:
    """What the verdict on a prediction, by its key, lacks; nothing if it or its claim is exempt,
    and no second length if a callback ended all of its runs: longer runs would end there, too."""
    if judged.claim.exempt or judged.claim.predictions[key].exempt:
        return Limits()
    own = [finding for finding in judged.findings if finding.key == key]
    steps = {finding.trained_steps for finding in own if finding.trained_steps}
    # The second length may be that of another prediction, which asks the same and says the same:
    # where the answer turns with the length, each holds at its own length alone.
    answers = judged.evidence()
    alike = [
        finding
        for finding in judged.needed()
        if same_question(finding, own[0]) and same_answer(answers[finding.key], answers[key])
    ]
    lengths = {finding.trained_steps for finding in alike} | steps
    are_ended = all(finding.is_ended_by_callback for finding in own)
    is_at_one_length = bool(steps) and not are_ended and max(lengths) < LONGER * min(lengths)
    rates = filter(None, map(limit_of_rates, own))
    is_repeated = all(finding.name in judged.again for finding in own)
    return Limits(
        lengths=tuple(sorted(steps)) if is_at_one_length else (),
        rates=tuple(dict.fromkeys(rates)),  # each once
        processors=() if is_repeated else ("on one processor",),
    )


def same_question(a: Finding, b: Finding) -> bool:
    """Whether two findings measure the same metric of the same arms, whatever their numbers of
    steps, learning rates and thresholds."""
    if (a.prediction.metric, a.prediction.read) != (b.prediction.metric, b.prediction.read):
        return False
    return arms_without_steps(a) == arms_without_steps(b)


def same_answer(a: Evidence, b: Evidence) -> bool:
    """Whether two predictions are decided, and say the same of the sentence."""
    return (a.is_for and b.is_for) or (a.is_against and b.is_against)


def arms_without_steps(finding: Finding) -> list[tuple[str, ...]]:
    """The overrides of each arm of a finding, without those of steps and learning rates."""
    found = []
    for arm in finding.arms.values():
        words = without_rate(arm.overrides)
        found.append(tuple(word for word in words if not word.startswith(STEPS_OF_ARM)))
    return found


def limit_of_rates(finding: Finding) -> str:
    """What a verdict must say of a finding whose learning rates may not be the best of each arm;
    empty if they are the best, or if nothing is trained."""
    if not finding.trained_steps:
        return ""
    if not finding.prediction.rates:
        return "at one rate"
    return "at a rate at the end of its grid" if finding.arms_at_edge else ""


def reach_line(judged: JudgedClaim, keys: Collection[str] = ()) -> str:
    """On which models, lengths, rates, seeds and processors a verdict stands, in one line: those
    of the predictions for and against the sentence that have seeds, or of those with the given
    keys."""
    keys = keys or [key for key, p in judged.claim.predictions.items() if p.role in DECIDE]
    findings = [finding for finding in judged.findings if finding.key in keys and finding.values]
    if not findings:
        return "not trained yet"
    trained = [finding for finding in findings if finding.trained_steps]
    parts = [*models_in_words(judged, trained), *training_in_words(trained)]
    if any(finding.is_measured for finding in findings):
        # Its function may train models of its own, of which rows do not tell the sizes.
        parts.append("and what measure.py computes" if trained else "what measure.py computes")
    parts.append(amounts({finding.tally.n for finding in findings}, "seed"))
    parts.append(places_in_words(judged, findings))
    return ", ".join(filter(None, parts))


def models_in_words(judged: JudgedClaim, trained: Sequence[Finding]) -> list[str]:
    """The layers, channels and parameters of the models that some findings trained, and how their
    weights start; nothing if there are none."""
    if not trained:
        return []
    layers: set[int] = set()
    channels: set[int] = set()
    parameters: set[int] = set()
    starts: set[str] = set()
    for finding in trained:
        for name, arm in finding.arms.items():
            if is_measurement(arm.overrides):  # an arm without a model, beside one with a model
                continue
            # The model does not depend on the rate. Without it, arms share settings in the cache.
            settings = arm_settings(without_rate(arm.overrides), judged.claim.folder.parent)
            layers.add(settings["model.n_layer"])
            channels.add(settings["model.n_embd"])
            starts.add(settings["model.init"])
            parameters.add(finding.rows[name][0]["values"]["parameters"])
    return [
        amounts(layers, "layer"),
        amounts(channels, "channel"),
        amounts(parameters, "parameter"),
        f"start {' and '.join(sorted(starts))}",
    ]


def training_in_words(trained: Sequence[Finding]) -> list[str]:
    """For how many steps findings were trained, and how their learning rates were chosen."""
    if not trained:
        return []
    are_chosen = [bool(finding.prediction.rates) for finding in trained]
    if all(are_chosen):
        rates = "each arm at its best rate"
    else:
        rates = "some arms at their best rate" if any(are_chosen) else "one rate"
    fewest = min(finding.prediction.rate_seeds for finding in trained)
    if any(are_chosen) and fewest < RATE_SEEDS:  # then the best rate is less sure
        rates += f", chosen by {amounts({fewest}, 'pilot')}"
    if any(finding.prediction.rate_by == "val_accuracy" for finding in trained):
        rates += ", that of the most right answers"
    if any(finding.arms_at_edge for finding in trained):
        rates += " (some at the end of their grid)"
    ended = [finding for finding in trained if finding.is_ended_by_callback]
    others = [finding for finding in trained if not finding.is_ended_by_callback]
    steps = [amounts({finding.trained_steps for finding in others}, "step")]
    if ended:
        longest = max(finding.trained_steps for finding in ended)
        steps.append(f"up to {longest:,} steps where a callback ended all runs")
    return [" and ".join(filter(None, steps)), rates]


def amounts(numbers: Iterable[int], unit: str) -> str:
    """Numbers with their unit, as in "2 layers" or "10 to 40 seeds". Empty if there are none."""
    numbers = set(numbers)
    if not numbers:
        return ""
    return f"{range_in_words(numbers)} {unit}{'' if numbers == {1} else 's'}"


def range_in_words(numbers: Iterable[int]) -> str:
    """Numbers such as "300 and 1,200" or, of three and more, the lowest and the highest: "10 to
    40". Empty if there are none."""
    known = [f"{number:,}" for number in sorted(set(numbers))]
    return " and ".join(known) if len(known) < 3 else f"{known[0]} to {known[-1]}"


def places_in_words(judged: JudgedClaim, findings: Sequence[Finding]) -> str:
    """The processors and instruction sets of the rows of findings; and those of their repetition,
    if they were repeated."""
    first = " and ".join(processors_of(row for _, row in rows_of_findings(findings)))
    again = [judged.again[each.name] for each in findings if each.name in judged.again]
    second = processors_of(row for _, row in rows_of_findings(again))
    if not second:
        return first
    part = (
        "" if len(again) == len(findings) else f" for {len(again)} of {len(findings)} predictions"
    )
    return f"{first}, again on {' and '.join(second)}{part}"


def processors_of(rows: Iterable[Row]) -> list[str]:
    """The processors of rows, each once and with its instruction set, in alphabetical order."""
    names = set()
    for row in rows:
        of_row = instruction_set_of(row) or "instruction set not recorded"
        names.add(f"{processor_of(row) or 'an unknown machine'} ({of_row})")
    return sorted(names)


def risk_in_words(judged: JudgedClaim) -> str:
    """How many of the predictions for and against the sentence were at risk, as they say and git
    shows: "1 of 3"."""
    deciding = [x for x in judged.findings if x.prediction.role in DECIDE]
    at_risk = [x for x in deciding if x.prediction.at_risk and judged.was_at_risk(x)]
    # A prediction with several lengths has as many findings, and counts once.
    return f"{len({x.key for x in at_risk})} of {len({x.key for x in deciding})}"


def reasons_for_words(judged: JudgedClaim) -> str:
    """Why the words of a verdict are as they are, for the table of all claims: that it is
    withdrawn or contradicted; or what keeps predictions open, what is exempt, and what is
    lacking."""
    if judged.claim.withdrawn:
        return "withdrawn"
    if judged.verdict != judged.verdict_of_predictions:
        return f"rows of {' and '.join(judged.contradicted_by())} say otherwise"
    doubts = {judged.why_open(finding) for finding in judged.findings} - {""}
    exempt = {judged.claim.exempt, *(p.exempt for p in judged.claim.predictions.values())} - {""}
    limits = limits_of(judged)
    lacks = []
    if limits.lengths:
        lacks.append(f"a second length of {LONGER} times as many steps")
    if limits.rates:
        lacks.append("the best rate of each arm")
    if limits.processors:
        lacks.append("a second processor or instruction set")
    reasons = [*sorted(doubts), *(f"exempt: {EXEMPT[kind]}" for kind in sorted(exempt))]
    if judged.verdict == "undecided":
        is_trained = all(finding.values for finding in judged.needed())
        reasons.append("its seeds do not decide it" if is_trained else "it is not all trained yet")
    if lacks:
        reasons.append(f"it lacks {', '.join(lacks)}")
    return "; ".join(reasons) or "nothing is lacking"
