"""Grade the exercises: run a student's function and attnlab's on the same small inputs.

    from exercises import grade

    grade(causal_mask)

A wrong answer is compared with the results of common mistakes. If one of them gives exactly this
result, the message describes the mistake.
"""

import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attnlab.errors import BadInput
from attnlab.installation import lab_path

from .about_heads import (
    check_layer,
    check_merge_heads,
    check_multi_head,
    check_repeat_kv,
    check_split_heads,
)
from .about_masks import (
    check_causal_mask,
    check_cross_attention,
    check_decoder_mask,
    check_kernel,
    check_masked_softmax,
)
from .about_positions import check_alibi_bias, check_rotate_pairs, check_sinusoid_table
from .about_scores import (
    check_additive_scores,
    check_attention,
    check_finite_fill_leak,
    check_late_mask_leak,
    check_same_without_scale,
    check_scores,
    check_softmax,
)
from .comparison import Wrong

VERDICTS = ("holds", "holds in part", "does not hold", "undecided")
TORCH = Path(torch.__file__).parent
# Part of PyTorch's error message -> what to do.
HELP = {
    "view size is not compatible": "after a transpose, the tensor is not contiguous: call "
    ".contiguous() before .view(), or use .reshape() or .flatten()",
    "without overflow": "the number does not fit into fp16: fill with float('-inf'), which every "
    "dtype has",
    "must match the size": "two shapes do not broadcast: print the shapes, and transpose only the "
    "last two axes, x.mT or x.transpose(-2, -1)",
    "mat1 and mat2": "the inner sizes of a matrix product differ: x @ W has the channels last",
    "expected size for first two dimensions": "x.T reverses all axes: transpose only the "
    "last two, x.mT or x.transpose(-2, -1)",
    "invalid for input of size": "the sizes do not give the number of elements; D is C // H",
}
EXERCISES: Mapping[str, Callable[[Callable[..., Any]], None]] = {
    "scores": check_scores,
    "softmax": check_softmax,
    "attention": check_attention,
    "additive_scores": check_additive_scores,
    "causal_mask": check_causal_mask,
    "masked_softmax": check_masked_softmax,
    "kernel": check_kernel,
    "decoder_mask": check_decoder_mask,
    "cross_attention": check_cross_attention,
    "split_heads": check_split_heads,
    "merge_heads": check_merge_heads,
    "repeat_kv": check_repeat_kv,
    "multi_head": check_multi_head,
    "Layer": check_layer,
    "finite_fill_leak": check_finite_fill_leak,
    "same_without_scale": check_same_without_scale,
    "late_mask_leak": check_late_mask_leak,
    "sinusoid_table": check_sinusoid_table,
    "rotate_pairs": check_rotate_pairs,
    "alibi_bias": check_alibi_bias,
}


@dataclass(frozen=True, repr=False)
class Grade:
    """The result of one exercise.

    Args:
        exercise: name of the exercise.
        passed: None if the exercise is not done yet.
        message: what is wrong, or "".
    """

    exercise: str
    passed: bool | None
    message: str = ""

    def __repr__(self) -> str:
        state = {None: "not done yet", True: "passed", False: "not right yet"}[self.passed]
        return f"{self.exercise}: {state}" + (f". {self.message}" if self.message else "")


def grade(answer: Callable[..., Any]) -> Grade:
    """Grade a function or class by its name; BadInput if there is no exercise with that name."""
    return _graded(answer.__name__, answer)


def grade_all(names: Iterable[str], answers: Mapping[str, Any]) -> list[Grade]:
    """Grade the exercises of a sheet.

    Args:
        names: the exercises.
        answers: what the notebook defines, `globals()`; what it lacks is not done yet.
    """
    return [
        _graded(name, answers[name]) if name in answers else Grade(name, None) for name in names
    ]


def points(*grades: Grade) -> int:
    """Print grades and return how many are right, which nbgrader takes as the points."""
    print(scored(grades) if len(grades) > 1 else grades[0])
    return sum(result.passed is True for result in grades)


def _graded(name: str, answer: Callable[..., Any]) -> Grade:
    if name not in EXERCISES:
        raise BadInput(f"{name} is not an exercise; choose one of {', '.join(EXERCISES)}")
    try:
        EXERCISES[name](answer)
    except NotImplementedError:
        return Grade(name, None)
    except Wrong as wrong:
        return Grade(name, False, str(wrong))
    except Exception as error:  # raised by the student's code, or by ours because of its result
        return Grade(name, False, _raised(error))
    return Grade(name, True)


def _raised(error: Exception) -> str:
    """Describe an error in the student's code: its type, its line, and what to do."""
    said = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.line for f in frames if not Path(f.filename).is_relative_to(TORCH) and f.line]
    where = f", in the line `{lines[-1]}`" if len(lines) > 2 else ""  # the first two are ours
    advice = [text for part, text in HELP.items() if part in str(error)]
    hint = f". {advice[0][0].upper()}{advice[0][1:]}." if advice else ""
    return f"It raises {type(error).__name__}: {said[0]}{where}{hint}"


def grade_statements(answers: Mapping[int, str | None]) -> list[Grade]:
    """Grade verdicts on the statements of the textbook page.

    An answer that is no verdict, or to a number that is no statement, is not right.

    Args:
        answers: number of the statement, counted from 1 -> one of `VERDICTS`, or None.
    """
    rows = statements()
    grades = []
    for number, answer in answers.items():
        if number not in range(1, len(rows) + 1):
            told = f"There is no such statement; numbers are 1 to {len(rows)}."
            grades.append(Grade(str(number), False, told))
            continue
        row = rows[number - 1]
        told = f"Test it: {row.command}"
        if answer not in VERDICTS:
            told = f"{answer!r} is not a verdict; choose one of {', '.join(VERDICTS)}."
        if answer == row.verdict:
            told = f"Our verdict: {row.words}. We found: {row.found}"
        passed = None if answer is None else answer == row.verdict
        grades.append(
            Grade(f"{number}. {row.text.rstrip('.')}", passed, "" if passed is None else told)
        )
    return grades


def scored(grades: Sequence[Grade]) -> str:
    """The grades of what was answered, a line each, and the score among all: "7 of 9 right"."""
    done = [result for result in grades if result.passed is not None]
    right = sum(result.passed is True for result in done)
    score = f"{right} of {len(grades)} right; {len(grades) - len(done)} not answered yet"
    return "\n".join([*map(str, done), score])


class Statement(NamedTuple):
    """A row of docs/textbook.md."""

    text: str
    verdict: str
    words: str  # the verdict, where it was tested, and what is in doubt
    found: str  # with the condition that is often left out
    command: str  # the command that tests the statement


def statements() -> list[Statement]:
    """The rows of docs/textbook.md, in the order of the page."""
    page = lab_path("docs/textbook.md").read_text(encoding="utf-8")
    page = re.sub(r"<!--.*?-->", "", page).replace("**", "")
    lines = re.findall(r"^\| (.*) \|$", page, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    verdict = re.compile("holds in part|does not hold|holds|undecided")
    found = []
    for text, cell, *rest in rows:
        if match := verdict.match(cell):
            says = text.partition("<br>")[0]  # its sources stand below it
            words = cell.replace("<br>", "; ").rstrip(".")
            found.append(Statement(says, match[0], words, *rest))
    return found
