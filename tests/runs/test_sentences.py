"""Sentences are right in direction, size, partner and seeds."""

from pathlib import Path
from typing import Any

import pytest

from attnlab.runs.pairing import Setting, pairs
from attnlab.runs.reading import read_run, read_runs
from attnlab.runs.sentences import alone, sentence, ten_seeds, too_few, verdict
from tests.runs.invented import write_run


def said(root: Path) -> str:
    (text,) = [text for c in pairs(read_runs(root)) if (text := sentence(c))]
    return text


def test_worse(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, entropy=0.53, head_similarity=0.1)
    write_run(tmp_path, "unscaled", 0, 2.1223, entropy=0.1, head_similarity=0.2)
    assert said(tmp_path) == (
        "unscaled ends 0.122 nats worse than sdpa with the same seed (one seed): training slowed, "
        "it did not fail. Each query spreads little of its weight (entropy 0.10; sdpa 0.53; 1 is "
        "even)."
    )


@pytest.mark.parametrize(
    ("loss", "clause"), [(4.1, "it learned almost nothing (a guess costs 4.17"), (3.5, "little")]
)
def test_how_little_was_learned(tmp_path: Path, loss: float, clause: str) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    write_run(tmp_path, "unscaled", 0, loss)
    assert clause in said(tmp_path)


def test_better_in_most_of_ten_seeds(tmp_path: Path) -> None:
    for seed in range(10):
        write_run(tmp_path, "sdpa", seed, 2.0)
        write_run(tmp_path, "unscaled", seed, 2.01 if seed == 7 else 1.9 - seed / 1000)
    assert said(tmp_path) == (
        "unscaled ends 0.104 nats better than sdpa (median of 10 seeds, 95 % interval -0.108 to "
        "-0.100; better in 9 of 10)."
    )
    (decided,) = [text for c in pairs(read_runs(tmp_path)) if (text := verdict(c))]
    assert decided == (
        "unscaled: counting does not decide (1 worse and 9 better of 10 seeds, 10 of 10 decide)."
    )
    assert too_few(pairs(read_runs(tmp_path))) == ""


@pytest.mark.parametrize(("apart", "size"), [(0.0, "exactly"), (1.2e-6, "to within 2e-06 nats")])
def test_equal(tmp_path: Path, apart: float, size: str) -> None:
    for seed in range(2):
        write_run(tmp_path, "sdpa", seed, 2.0, entropy=0.5)
        write_run(tmp_path, "manual", seed, 2.0 + apart, entropy=0.5)
    assert said(tmp_path) == (
        f"manual ends with the loss of sdpa, {size} (2 seeds). Its queries spread their weight "
        "about as widely (entropy 0.50; sdpa 0.50; 1 is even)."
    )
    assert too_few(pairs(read_runs(tmp_path))) == ""


@pytest.mark.parametrize(
    ("diverged", "text"),
    [
        ((0,), "unscaled diverged at step 3 (one seed); sdpa ended at 2.000 nats."),
        (
            (0, None),
            "unscaled diverged at step 3 in 1 of 2 seeds; sdpa ended at 2.000 nats; where neither "
            "diverged, unscaled ends 0.100 nats worse than sdpa.",
        ),
    ],
)
def test_diverged(tmp_path: Path, diverged: tuple[int | None, ...], text: str) -> None:
    for seed, end in enumerate(diverged):
        write_run(tmp_path, "sdpa", seed, 2.0)
        ended: dict[str, Any] = {} if end is None else {"status": "diverged", "step": 3}
        write_run(tmp_path, "unscaled", seed, 2.1, **ended)
    assert said(tmp_path) == text


def test_a_median_of_zero_is_neither_better_nor_worse(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.9, 2.0, 2.1)):
        write_run(tmp_path, "sdpa", seed, 2.0)
        write_run(tmp_path, "unscaled", seed, loss)
    text = "unscaled ends about as well as sdpa (median of 3 seeds; better in 1 of 3)."
    assert said(tmp_path) == text


def test_the_verdict_names_the_seeds_that_decide_it(tmp_path: Path) -> None:
    for seed in range(20):
        write_run(tmp_path, "sdpa", seed, 2.0)
        write_run(tmp_path, "unscaled", seed, 2.1 if seed < 10 else 1.9)
    (decided,) = [text for c in pairs(read_runs(tmp_path)) if (text := verdict(c))]
    assert decided == (
        "unscaled is worse than sdpa in most seeds (10 worse and 0 better of the first 10 seeds, "
        "10 of 10 decide)."
    )


def test_a_leak(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, future_mass=0.0)
    folder = write_run(tmp_path, "flipped", 0, 0.1, future_mass=0.94)
    assert said(tmp_path) == (
        "flipped reads the future (weight 0.94 on later positions), so the loss of flipped, 0.100 "
        "nats against 2.000 of sdpa, does not compare predictions (one seed)."
    )
    assert too_few(pairs(read_runs(tmp_path))) == ""
    assert alone(Setting((read_run(folder),))).startswith("This model reads the future")
    (of_leak,) = [c for c in pairs(read_runs(tmp_path)) if c.pairs]
    assert alone(of_leak.setting).startswith("flipped reads the future")
    write_run(tmp_path, "sdpa", 1, 2.2, future_mass=0.0)
    write_run(tmp_path, "flipped", 1, 0.3, future_mass=0.94)
    assert said(tmp_path).endswith("does not compare predictions (medians of 2 seeds).")


def test_a_collapse(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, head_similarity=0.034)
    write_run(tmp_path, "identical_heads", 0, 2.004, head_similarity=1.0)
    assert said(tmp_path) == (
        "identical_heads ends 0.0040 nats worse than sdpa with the same seed (one seed). All its "
        "heads attend alike (similarity 1.000; sdpa 0.034)."
    )


def test_stopped(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    write_run(tmp_path, "unscaled", 0, 2.005, status="stopped", step=4)
    assert said(tmp_path).endswith("unscaled with seed 0 was stopped at step 4 of 8.")


def test_precisions_that_differ_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    file = write_run(tmp_path, "unscaled", 0, 2.005) / "metrics.json"
    file.write_text(file.read_text().replace("32-true", "bf16-mixed"))
    assert said(tmp_path).endswith("The precisions differ: bf16-mixed beside 32-true.")


def test_the_partner_has_the_same_settings(tmp_path: Path) -> None:
    for heads in (1, 4):
        write_run(tmp_path, "sdpa", 0, 2.0, f"model.n_head={heads}")
    write_run(tmp_path, "unscaled", 0, 1.99, "model.n_head=4")
    assert said(tmp_path).startswith("unscaled n_head=4 ends 0.010 nats better than sdpa n_head=4")


def test_the_command_for_ten_seeds(tmp_path: Path) -> None:
    for heads in (1, 4):
        for seed in range(3):
            write_run(tmp_path, "sdpa", seed, 2.0, "preset=micro", f"model.n_head={heads}")
            write_run(tmp_path, "unscaled", seed, 2.1, "preset=micro", f"model.n_head={heads}")
    assert too_few(pairs(read_runs(tmp_path))) == (
        "3 seeds cannot decide; the command for ten is\n"
        "  python train.py -m attn=sdpa,unscaled preset=micro model.n_head=1,4 'seed=range(10)'"
    )


def test_a_value_that_was_not_typed_is_joined_with_those_that_were(tmp_path: Path) -> None:
    for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1)):
        write_run(tmp_path, variant, 0, loss)
        write_run(tmp_path, variant, 0, loss, "optim.lr=0.01")
    assert ten_seeds(read_runs(tmp_path)) == [
        "python train.py -m attn=sdpa,unscaled optim.lr=0.01,0.001 'seed=range(10)'"
    ]


def test_settings_that_are_no_grid_take_several_commands(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    write_run(tmp_path, "sdpa", 0, 2.1, "optim.lr=0.01")
    write_run(tmp_path, "unscaled", 0, 2.1, "optim.lr=0.01")
    write_run(tmp_path, "manual", 0, 2.1, "model=[a,b]")
    assert sorted(ten_seeds(read_runs(tmp_path))) == [
        "python train.py -m attn=manual 'model=[a,b]' optim.lr=0.001 'seed=range(10)'",
        "python train.py -m attn=sdpa optim.lr=0.001 'seed=range(10)'",
        "python train.py -m attn=sdpa,unscaled optim.lr=0.01 'seed=range(10)'",
    ]
