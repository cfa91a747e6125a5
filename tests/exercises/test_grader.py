"""The grader accepts correct answers, and describes the mistake in wrong ones."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch

from attnlab.attention.kernels import manual
from attnlab.errors import BadInput
from docs import exercises
from docs.exercises import Grade, grade, grade_all, grade_statements, points, scored, statements
from docs.exercises.grader import EXERCISES
from docs.notebooks import EXERCISES as FILES
from docs.notebooks import SHOWN, anonymous, solved, student
from tests.exercises.wrong_answers import MESSAGES
from tests.faults import in_gpt

Answer = Callable[..., Any]


def defined(source: str) -> dict[str, Any]:
    """What a notebook's code defines, with its grades by exercise."""
    names: dict[str, Any] = {name: getattr(exercises, name) for name in exercises.__all__}
    exec(compile(source, "notebook", "exec"), names)
    return names


def answers_of(source: str) -> dict[str, Answer]:
    return {name: value for name, value in defined(source).items() if name in EXERCISES}


def code(notebook: Any) -> str:
    """The code of a notebook's exercises, without the cell that installs."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return "\n\n".join(cells[1:])


RIGHT = {
    name: answer
    for file in FILES
    if "statements" not in file.name
    for name, answer in answers_of(code(solved(file))).items()
}
STUBS = {
    name: answer
    for file in FILES
    if "statements" not in file.name
    for name, answer in answers_of(code(student(file))).items()
}


def test_every_exercise_is_in_a_notebook_and_in_the_grader() -> None:
    assert set(RIGHT) == set(STUBS) == set(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_the_right_answer_passes(name: str) -> None:
    assert grade(RIGHT[name]) == Grade(name, True)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_is_not_done_yet(name: str) -> None:
    assert repr(grade(STUBS[name])) == f"{name}: not done yet"


@pytest.mark.parametrize("wrong", MESSAGES, ids=lambda wrong: wrong.__name__)
def test_a_wrong_answer_fails_with_a_message_that_describes_the_mistake(wrong: Answer) -> None:
    given = named(wrong, wrong.__name__.partition("__")[0])
    result = grade(given)
    assert result.exercise == given.__name__ and result.passed is False
    assert MESSAGES[wrong] in result.message


def named(answer: Answer, name: str) -> Answer:
    """The same function or class under another name."""
    if isinstance(answer, type):
        return type(name, (answer,), {})
    assert isinstance(answer, FunctionType)
    copy = FunctionType(answer.__code__, answer.__globals__, name, answer.__defaults__)
    copy.__kwdefaults__ = answer.__kwdefaults__
    return copy


def test_there_are_wrong_answers_to_every_exercise() -> None:
    assert {wrong.__name__.partition("__")[0] for wrong in MESSAGES} == set(EXERCISES)


def test_an_error_names_its_line_and_an_unknown_mistake_a_wrong_number() -> None:
    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q @ k.mT / missing  # type: ignore[name-defined]  # noqa: F821

    assert "NameError" in grade(scores).message and "q @ k.mT / missing" in grade(scores).message

    def softmax(s: torch.Tensor) -> torch.Tensor:
        return 0.5 * s.softmax(-1)

    assert "the result is" in grade(softmax).message and "should be" in grade(softmax).message


def test_an_unknown_name_is_refused() -> None:
    def mask(T: int) -> None: ...

    with pytest.raises(BadInput, match="mask is not an exercise; choose one of scores, "):
        grade(mask)


@pytest.mark.parametrize("name", SHOWN)
def test_a_planted_error_fails_until_it_is_fixed(name: str) -> None:
    kind = "kernel" if name in in_gpt.KERNELS else "mask"
    function = (in_gpt.KERNELS | in_gpt.MASKS)[name]
    source = anonymous(function, f"{kind}_1")
    assert '"""' not in source and "#" not in source and name not in source
    imports = (
        "import torch.nn.functional as F\nfrom attnlab.attention import kernels\n"
        "from attnlab.attention.kernels import manual, mix, scores\n"
    )
    planted = defined(imports + source)[f"{kind}_1"]
    plain, told = grade(planted), grade(planted, hint=True)
    assert plain.passed is False and told.passed is False
    assert len(told.message) > 20 and told.message != plain.message


def test_a_fixed_error_passes() -> None:
    assert grade(named(manual, "kernel_3")).passed

    def mask_10(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return k <= q

    assert grade(mask_10).passed


def test_statements_are_graded_by_the_published_verdicts() -> None:
    rows = statements()
    assert len(rows) >= 30
    right = grade_statements({n: row.verdict for n, row in enumerate(rows, 1)})
    assert all(result.passed for result in right)
    assert rows[0].found in right[0].message and rows[0].condition in right[0].message
    wrong, undone = grade_statements({1: "does not hold", 2: None})
    assert wrong.passed is False and "attnlab reproduce unscaled" in wrong.message
    assert undone.passed is None and undone.message == ""


def test_a_wrong_word_loses_no_other_grade_and_unanswered_ones_are_counted() -> None:
    first = statements()[0].verdict
    grades = grade_statements({1: first, 2: "true", 3: None, 99: "holds", 4: ""})
    assert [result.passed for result in grades] == [True, False, None, False, False]
    assert "'true' is not a verdict; choose one of holds, holds only if" in grades[1].message
    *lines, score = scored(grades).splitlines()
    assert score == "1 of 4 right; 1 not answered yet"
    assert len(lines) == 4 and "There is no such statement" in lines[2]
    assert scored([]) == "0 of 0 right; 0 not answered yet"


def test_a_sheet_is_graded_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Right, wrong, missing, and other things under the name of an exercise."""
    answers = RIGHT | {"softmax": lambda scores: scores, "attention": 3}
    del answers["kernel"]
    names = "scores softmax attention kernel causal_mask".split()
    grades = grade_all(names, answers)
    assert [result.passed for result in grades] == [True, False, False, None, True]
    assert scored(grades).splitlines()[-1] == "2 of 4 right; 1 not answered yet"
    assert points(*grades) == 2 and points(grades[0]) == 1 and points(grades[3]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["scores: passed", "kernel: not done yet"]
