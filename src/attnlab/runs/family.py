"""Several verdicts at once: how likely any of them is wrong, and which of them stand together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnlab.runs.compare import BETTER_OR_WORSE, Comparison, Question, equal_within
from attnlab.runs.seed_statistics import chance_of_wrong_verdict, stand_after_holm

LEVEL = 0.05  # of Holm's correction: the chance that any verdict that stands is wrong, at most


@dataclass(frozen=True)
class Family:
    """What counting seeds answers for several settings together."""

    any_wrong: float  # the chance that any of the verdicts is wrong, at most
    # By label and question, of those with enough seeds: whether a verdict stands after Holm's
    # correction; False for what is open.
    stands: Mapping[tuple[str, Question], bool]
    decided: Sequence[tuple[str, Question]]

    def mark(self, label: str, question: Question = BETTER_OR_WORSE) -> str | None:
        """Whether a verdict stands or falls beside the others; None for what is open or alone."""
        if len(self.stands) < 2 or (label, question) not in self.decided:
            return None
        return "stands" if self.stands[label, question] else "falls"


def questions_of(within: float | None) -> list[Question]:
    """What is asked of each setting: better or worse and, with a margin, whether it is equal."""
    return [BETTER_OR_WORSE] if within is None else [BETTER_OR_WORSE, equal_within(within)]


def family_of(comparisons: Sequence[Comparison], within: float | None = None) -> Family:
    """All verdicts that are printed together, as one family."""
    wrong = {}  # the chance that an answer is a wrong verdict
    decided = []
    for c in comparisons:
        for question in questions_of(within):
            answer, seeds = c.decision(question)
            if seeds:
                wrong[c.label, question] = chance_of_wrong_verdict(seeds)
            if answer != "open":
                decided.append((c.label, question))
    chances = [chance if key in decided else 1.0 for key, chance in wrong.items()]
    stands = dict(zip(wrong, stand_after_holm(chances, LEVEL), strict=True))
    return Family(min(1.0, sum(wrong.values())), stands, decided)
