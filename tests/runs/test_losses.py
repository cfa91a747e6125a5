"""The losses of any script, judged: the table, and what is refused."""

import math
from pathlib import Path

import pandas as pd
import pytest

import attnlab
from attnlab.errors import BadInput
from attnlab.runs.compare import compare
from attnlab.runs.frame import read_runs
from attnlab.runs.losses import judge_table, read_losses
from attnlab.runs.report import all_sentences
from tests.invented import write_run

BASE = [2.0 + seed / 100 for seed in range(10)]
Row = tuple[str, object, object]


def table_of(*rows: Row, **columns: object) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["run", "seed", "value"]).assign(**columns)


def losses(name: str, differences: list[float], first: int = 0) -> list[Row]:
    return [
        (name, seed, BASE[seed] + x if math.isfinite(x) else x)
        for seed, x in enumerate(differences, start=first)
    ]


@pytest.mark.parametrize(
    ("differences", "verdict", "within", "code"),
    [
        ([-0.1] * 10, "better", "unequal", 0),
        ([-0.01 - seed / 1e4 for seed in range(10)], "better", "equal", 1),
        ([-0.1] * 5 + [-0.01] * 5, "better", "open", 3),  # by less than the margin, perhaps
        ([0.1] * 10, "worse", "unequal", 1),
        ([-0.1] * 9 + [0.1], "open", "open", 3),
        ([-0.1], "open", "open", 3),  # one seed is no progress
        ([-0.1] * 9 + [math.nan], "open", "open", 3),  # it diverged
        ([0.1] * 9 + [math.inf], "worse", "unequal", 1),
        ([0.0] * 10, "open", "equal", 1),
    ],
)
def test_verdicts_and_exit_codes(
    differences: list[float], verdict: str, within: str, code: int
) -> None:
    table = table_of(*losses("base", [0.0] * 10), *losses("own", differences))
    found = attnlab.judge(table, within=0.05)
    (row,) = found.table[found.table.run == "own"].to_dict("records")
    assert (row["verdict"], row["within"], found.exit_code) == (verdict, within, code)


def test_it_is_the_verdict_of_compare(tmp_path: Path) -> None:
    """The same losses, as runs of attnlab and as a table."""
    differences = [0.01 * (-1) ** seed + 0.004 for seed in range(9)]
    for seed, x in enumerate(differences):
        write_run(tmp_path, "sdpa", seed, BASE[seed])
        write_run(tmp_path, "own", seed, BASE[seed] + x)
    rows = [*losses("sdpa", [0.0] * 9), *losses("own", differences)]
    judged = attnlab.judge(table_of(*rows, unit="nats"), within=0.05)
    compared = compare(read_runs(tmp_path))
    pd.testing.assert_frame_equal(judged.table, attnlab.compare(tmp_path, within=0.05).table)
    assert {*all_sentences(compared, 0.05)} < {*judged.sentences}  # but for the commands


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ([42], "it has seed 1337, base seed 42"),  # a changed seed is no change
        ([42, 1337], "seed 42 of base do not count"),
    ],
)
def test_other_seeds_are_no_pairs(seeds: list[int], said: str) -> None:
    rows = [("base", seed, 2.0) for seed in seeds]
    found = attnlab.judge(table_of(*rows, ("own", 1337, 1.9)))
    assert said in found.text() and found.exit_code == 3


def test_the_last_step_counts_and_unequal_steps_are_said() -> None:
    rows: list[Row] = []
    steps = []
    for step in (10, 20, 30):
        rows += [("base", 0, 3 - step / 100)] if step < 30 else []
        rows += [("own", 0, 3 - step / 50)]
        steps += [step] * (2 if step < 30 else 1)
    found = attnlab.judge(table_of(*rows, step=steps, unit="bits"))
    assert found.table.val_loss.tolist() == pytest.approx([2.8, 2.4])
    assert "0.400 bits better" in found.sentences[0] and "30 steps beside 20" in found.sentences[0]


@pytest.mark.parametrize(("steps", "code"), [(1000, 0), (999, 0), (2000, 3)])
def test_what_was_trained_for_longer_is_no_progress(steps: int, code: int) -> None:
    rows = [*losses("base", [0.0] * 10), *losses("own", [-0.1] * 10)]
    found = attnlab.judge(table_of(*rows, step=[1000] * 10 + [steps] * 10))
    assert found.exit_code == code


@pytest.mark.parametrize(
    ("size", "said"), [(3e-6, "3e-06 worse"), (0.5, "0.500 worse"), (1234.5, "1234.500 worse")]
)
def test_a_difference_of_any_size_is_a_number(size: float, said: str) -> None:
    found = attnlab.judge(table_of(("base", 0, 0.0), ("own", 0, size)))
    assert said in found.sentences[0]


def test_names_are_any_text() -> None:
    rows = [("lr=1e-3, wd=0", 0, 2.0), ("a/b", 0, 2.1), ("0.5", 0, 2.2)]
    found = attnlab.judge(table_of(*rows), baseline="a/b")
    assert {c.baseline.label for c in found.comparisons if c.baseline} == {"a/b"}
    assert {*found.table.run} == {name for name, _, _ in rows}


HEAD = "run,seed,value\nbase,0,2\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run,value\nbase,2\nown,1\n", "seed"),
        ("name,seed,loss\nbase,0,2\n", "run and value"),
        (HEAD, "nothing but base"),
        (HEAD + "own,0,\n", "line 3: value is empty"),
        (HEAD + "own,0,low\n", "line 3: value = low"),
        (HEAD + "own,a,2\n", "line 3: seed = a"),
        (HEAD + "own,0.5,2\n", "line 3: seed = 0.5"),
        (HEAD + "own,0,2\nbase,0,2\n", "line 4: a second value of base with seed 0"),
        (HEAD + "own,0,2,5\n", "no CSV"),
        ("", "no CSV"),
        ("run,seed,value\n", "no rows"),
        ("run,seed,value,unit\nbase,0,2,nats\nown,0,2,bits\n", "nats, bits"),
    ],
)
def test_a_table_that_cannot_be_judged(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "losses.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=said):
        judge_table(read_losses(file))


def test_a_baseline_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="did you mean base"):
        attnlab.judge(table_of(("base", 0, 2.0), ("own", 0, 2.0)), baseline="bas")


def test_many_settings_are_one_family() -> None:
    """Ten of ten seeds stand among 25 settings, and not among 26."""
    for settings, stands in ((25, "stands"), (26, "falls")):
        rows = losses("base", [0.0] * 10)
        for n in range(settings):
            rows += losses(f"own {n}", [0.1] * 10)
        found = attnlab.judge(table_of(*rows))
        assert {*found.table.holm.dropna()} == {stands}
        chance = found.to_dict()["chance_of_any_wrong_verdict"]
        assert chance == pytest.approx(settings * 2 / 2**10)
