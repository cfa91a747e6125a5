"""Several verdicts at once: how likely any of them is wrong, and which of them stand together."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from attnlab.runs.compare import BETTER_OR_WORSE, Comparison, Question, equal_within
from attnlab.runs.seed_statistics import chance_of_wrong_verdict, stand_after_holm

LEVEL = 0.05  # of Holm's correction: the chance that any verdict that stands is wrong, at most
Of = TypeVar("Of", bound=Hashable)


@dataclass(frozen=True)
class Family(Generic[Of]):
    """What counting seeds answers to several questions together."""

    any_wrong: float  # the chance that any of the verdicts is wrong, at most
    # Of each question that had enough seeds, whether its verdict stands after Holm's correction;
    # False for what is open.
    stands: Mapping[Of, bool]
    decided: Sequence[Of]

    def mark(self, key: Of) -> str | None:
        """Whether a verdict stands or falls beside the others; None for what is open or alone."""
        if len(self.stands) < 2 or key not in self.decided:
            return None
        return "stands" if self.stands[key] else "falls"


def family_of_answers(answers: Mapping[Of, tuple[str, int]]) -> Family[Of]:
    """The family of some answers: by question, the answer in a word, "open" if undecided, and the
    number of seeds after which it was given."""
    wrong = {key: chance_of_wrong_verdict(seeds) for key, (_, seeds) in answers.items()}
    decided = [key for key, (answer, _) in answers.items() if answer != "open"]
    # At 1.0, what is open does not stand.
    chances = [chance if key in decided else 1.0 for key, chance in wrong.items()]
    stands = dict(zip(wrong, stand_after_holm(chances, LEVEL), strict=True))
    return Family(min(1.0, sum(wrong.values())), stands, decided)


Verdicts = Family[tuple[str, Question]]  # on settings, by label and question


def questions_of(within: float | None) -> list[Question]:
    """What is asked of each setting: better or worse and, with a margin, whether it is equal."""
    return [BETTER_OR_WORSE] if within is None else [BETTER_OR_WORSE, equal_within(within)]


def family_of(comparisons: Sequence[Comparison], within: float | None = None) -> Verdicts:
    """The answers to all questions that had enough seeds, as a family; with a margin `within`,
    also those on equality."""
    answers = {}
    for c in comparisons:
        for question in questions_of(within):
            decision = c.decision(question)
            if decision.seeds:
                answers[c.label, question] = decision
    return family_of_answers(answers)
