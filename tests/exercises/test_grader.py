"""Solved sheets pass, empty ones are not done, wrong answers are told what is wrong."""

import math
import runpy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.errors import BadInput
from docs import exercises
from docs.exercises import Grade, grade, grade_all, grade_statements, points, scored, statements
from docs.exercises.grader import EXERCISES
from tests.conftest import ROOT

NOTEBOOKS = runpy.run_path(str(ROOT / "scripts/notebooks.py"))
SHEETS = [file for file in NOTEBOOKS["SHEETS"] if "statements" not in file.name]


def answers_of(*, solutions: bool) -> dict[str, Any]:
    """What the sheets define, without the cells that install and print scores."""
    names: dict[str, Any] = {name: getattr(exercises, name) for name in exercises.__all__}
    for file in SHEETS:
        cells = NOTEBOOKS["exercises"](file, solutions=solutions).cells
        code = [cell.source for cell in cells if cell.cell_type == "code"]
        exec("\n\n".join(x for x in code[1:] if not x.startswith("points(")), names)
    return {name: names[name] for name in EXERCISES}


SOLVED, EMPTY = answers_of(solutions=True), answers_of(solutions=False)


def inf(s: Any, mask: Any) -> Any:
    """Masked scores."""
    return s.masked_fill(~mask, -math.inf)


def tril(n: int) -> Any:
    return torch.ones(n, n, dtype=torch.bool).tril()


def reads_on(q: Any, k: Any, v: Any, *, mask: Any, scale: float, dropout: float) -> Any:
    return F.dropout((q @ k.mT * scale).softmax(-1), dropout) @ v


def never_drops(q: Any, k: Any, v: Any, *, mask: Any, scale: float, dropout: float) -> Any:
    return inf(q @ k.mT * scale, mask).softmax(-1) @ v


def layer(how: str) -> Any:
    """A layer with a mistake."""

    class Layer(SOLVED["Layer"]):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            if how == "ahead":
                return super().forward(x) + x.mean(1, keepdim=True)
            if how == "drops in eval":
                return F.dropout(super().forward(x), 0.5)
            if how == "never drops":
                self.dropout = 0.0
            return super().forward(x[:, :1] if how == "shape" else x)

    return Layer


class Small(nn.Module):
    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.only = nn.Linear(n_embd, n_embd)

    def forward(self, x: Any) -> Any:
        return self.only(x)


def by_the_width(x: Any, W_q: Any, W_k: Any, W_v: Any, W_o: Any, n: int) -> Any:
    """Scores over sqrt(C) instead of sqrt(D)."""
    return SOLVED["multi_head"](x, W_q / n**0.5, W_k, W_v, W_o, n)


def swapped(x: Any) -> Any:
    """Neighboring channels exchanged."""
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


EYE = torch.eye(12, dtype=torch.float64)
WRONG: list[tuple[str, Any, str]] = [
    ("scores", lambda q, k: q @ k.mT, "not scaled"),
    ("scores", lambda q, k: q @ k.mT / q.shape[-1], "divided by D"),
    ("scores", lambda q, k: k @ q.mT / q.shape[-1] ** 0.5, "exchanged"),
    ("scores", lambda q, k: None, "Is the return missing"),
    ("scores", lambda q, k: q @ k.mT / missing, "NameError"),  # type: ignore[name-defined]  # noqa: F821
    ("softmax", lambda s: s.exp() / s.exp().sum(-1, keepdim=True), "overflows"),
    ("softmax", lambda s: s.softmax(-2), "over the queries"),
    ("softmax", lambda s: 0.5 * s.softmax(-1), "should be"),
    ("attention", lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "not scaled"),
    ("attention", lambda q, k, v: (q @ k.mT / 5**0.5) @ v, "softmax is missing"),
    ("additive_scores", lambda q, k, W, U, v: ((q @ W.mT)[:, :, None] + (k @ U.mT)[:, None]) @ v,
     "tanh is missing"),
    ("same_without_scale", lambda q, k: (q, k), "unchanged"),
    ("same_without_scale", lambda q, k: (q / 4, k / 4), "divided by D"),
    ("finite_fill_leak", lambda: (torch.zeros(4, 1), torch.ones(4, 1)), "more than 0.5"),
    ("late_mask_leak", lambda: (torch.zeros(3, 3), torch.zeros(3, 3)), "are the same"),
    ("late_mask_leak", lambda: (torch.zeros(3, 3), torch.ones(3, 3)), "above the diagonal"),
    ("causal_mask", lambda n: tril(n).mT, "transposed"),
    ("causal_mask", lambda n: tril(n).float(), "bool"),
    ("causal_mask", lambda n: ~tril(n), "polarity"),
    ("masked_softmax", lambda s, mask: s.softmax(-1) * mask, "after the softmax"),
    ("masked_softmax", lambda s, mask: s.masked_fill(~mask, -1e4).softmax(-1), "finite number"),
    ("masked_softmax", lambda s, mask: s.masked_fill_(~mask, -math.inf).softmax(-1), "caller"),
    ("decoder_mask", lambda lengths, n: tril(n).expand(3, n, n), "padding is ignored"),
    ("decoder_mask", lambda n, T: tril(T) | (torch.arange(T) < n[:, None])[:, None], "joined by"),
    ("cross_attention", lambda q, k, v, may: (q @ k.mT / 2).softmax(-1) @ v, "ignored"),
    ("cross_attention", lambda q, k, v, may: inf(q @ k.mT / 2, may).softmax(-1) @ v, "broadcast"),
    ("kernel", reads_on, "no mask is applied"),
    ("kernel", never_drops, "Dropout has no effect"),
    ("kernel", lambda q, k, v: v, "must take"),
    ("split_heads", lambda x, n: x.reshape(len(x), n, x.shape[1], -1), "tokens are mixed"),
    ("merge_heads", lambda y: y.mean(1), "averaged"),
    ("repeat_kv", lambda k, n: k.repeat(1, n // k.shape[1], 1, 1), "tiled"),
    ("multi_head", lambda x, q, k, v, o, n: SOLVED["multi_head"](x, q, k, v, EYE, n),
     "projection W_o is missing"),
    ("multi_head", lambda x, q, k, v, o, n: SOLVED["multi_head"](x, q, k, v, o, 1), "full width"),
    ("Layer", layer("ahead"), "every position reads all"),
    ("Layer", layer("drops in eval"), "random in eval mode"),
    ("Layer", layer("shape"), "shape"),
    ("Layer", layer("never drops"), "Dropout has no effect"),
    ("Layer", Small, "parameters"),
    ("multi_head", by_the_width, "with the width of all heads"),
    ("sinusoid_table", lambda T, C: SOLVED["sinusoid_table"](T + 1, C)[1:], "count from 0"),
    ("sinusoid_table", lambda T, C: swapped(SOLVED["sinusoid_table"](T, C)), "exchanged"),
    ("rotate_pairs", lambda x: swapped(SOLVED["rotate_pairs"](swapped(x))), "the other way"),
    ("rotate_pairs", lambda x: x, "Nothing is turned"),
    ("alibi_bias", lambda T, H: -SOLVED["alibi_bias"](T, H), "sign"),
    ("alibi_bias", lambda T, H: SOLVED["alibi_bias"](T, H) * 2 ** (8 / H), "count from 1"),
]  # fmt: skip


def named(name: str, answer: Any) -> Any:
    """The answer under the name of an exercise."""
    answer.__name__ = name
    return answer


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_passes_and_a_stub_is_not_done(name: str) -> None:
    assert grade(SOLVED[name]) == Grade(name, True)
    assert grade(EMPTY[name]).passed is None


@pytest.mark.parametrize(("name", "answer", "words"), WRONG, ids=[f"{x[0]}-{x[2]}" for x in WRONG])
def test_a_wrong_answer_is_told_what_is_wrong(name: str, answer: Any, words: str) -> None:
    told = grade(named(name, answer))
    assert told.passed is False and words in told.message, told


IN_NUMPY: dict[str, Any] = {
    "scores": lambda q, k: q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5,
    "softmax": lambda s: (
        np.exp(s - s.max(-1, keepdims=True))
        / np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "finite_fill_leak": lambda: (np.full((4, 1), -2e4), np.ones((4, 1))),
    "causal_mask": lambda n: np.tril(np.ones((n, n), bool)),
}


@pytest.mark.parametrize("name", IN_NUMPY)
def test_answers_may_be_written_with_numpy(name: str) -> None:
    assert grade(named(name, IN_NUMPY[name])) == Grade(name, True)


def test_there_are_wrong_answers_to_every_exercise() -> None:
    assert {name for name, _, _ in WRONG} == EXERCISES.keys()
    with pytest.raises(BadInput, match="choose one of scores, "):
        grade(tril)


def test_statements_are_graded_by_the_published_verdicts() -> None:
    rows = statements()
    assert len(rows) >= 30
    right = {number: row.verdict for number, row in enumerate(rows, 1)}
    agreed = grade_statements(right)
    assert all(grade.passed for grade in agreed)
    unscaled = next(i for i, row in enumerate(rows) if "attnlab reproduce unscaled" in row.command)
    assert "10 seeds" in agreed[unscaled].message  # how far the verdict reaches
    other = {"holds": "undecided"}.get(rows[1].verdict, "holds")
    grades = grade_statements({2: other, 3: None, 99: "holds", 4: "true"})
    assert [g.passed for g in grades] == [False, None, False, False]
    assert rows[1].command in grades[0].message
    assert "no such statement" in grades[2].message and "not a verdict" in grades[3].message


def test_a_sheet_is_graded_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    answers = SOLVED | {"softmax": lambda s: s, "attention": 3}
    del answers["kernel"]
    grades = grade_all("scores softmax attention kernel causal_mask".split(), answers)
    assert [g.passed for g in grades] == [True, False, False, None, True]
    assert scored(grades).splitlines()[-1] == "2 of 5 right; 1 not answered yet"
    assert points(*grades) == 2 and points(grades[0]) == 1 and points(grades[3]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["scores: passed", "kernel: not done yet"]
