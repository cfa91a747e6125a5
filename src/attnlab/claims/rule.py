"""The rule for verdicts: from the answers of seeds to a prediction, and from those to a sentence.

`docs/claims.md` states the rule. A change of this file changes every declaration.
"""

from collections.abc import Sequence
from typing import Literal

from attnlab.runs.seed_statistics import LOOKS, Answer, Verdict, count

Sentence = Literal["holds", "holds only if", "does not hold", "open"]


def decide(answers: Sequence[Answer], last_look: int, exact: bool) -> tuple[Verdict, int, bool]:
    """The verdict, the number of seeds it is based on, and whether a later look could decide.

    An `exact` criterion needs no statistics: one miss refutes, and the first 10 seeds confirm.
    """
    if exact:
        if any(answer != "yes" for answer in answers):
            return "refuted", len(answers), False
        return ("confirmed" if len(answers) >= LOOKS[0][0] else "open"), len(answers), False
    return count(answers, last_look)


def decide_lengths(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a prediction that is tested at several lengths of training.

    Confirmed or refuted if it is so at every length. If it is false at one length, all of them
    are confirmed at most as often as that one, so the error is not larger than that of one length.
    """
    return verdicts[0] if len(set(verdicts)) == 1 else "open"


def decide_sentence(true: int, false: int, undecided: int) -> Sentence:
    """The verdict on a sentence by the settings in which it is true, false and undecided."""
    if false:
        return "holds only if" if true else "does not hold"
    return "holds" if true and not undecided else "open"
