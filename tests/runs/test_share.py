"""What attention gives: the measure, where it has no number and why, and where people meet it."""

import math
from pathlib import Path

import pytest

from attnlab.runs import report
from attnlab.runs.best_rate import at_best
from attnlab.runs.compare import compare
from attnlab.runs.figure import draw_comparison
from attnlab.runs.frame import read_runs
from attnlab.runs.share import percent, share_of, share_sentence, shares_of
from attnlab.runs.tables import as_text, comparison_table
from tests.invented import write_run

NONE, SDPA = [2.5, 2.6, 2.4, *[2.5] * 7], [2.1, 2.2, 2.0, *[2.1] * 7]  # attention gives 0.4


def losses(*kept: float) -> tuple[list[float], list[float], list[float]]:
    """Losses of settings that keep given shares of 0.4 nats, one for each seed."""
    n = len(kept)
    return [a - 0.4 * x for a, x in zip(NONE, kept, strict=False)], NONE[:n], SDPA[:n]


@pytest.mark.parametrize(
    ("kept", "median", "low", "high"),
    [
        ((0.0, 0.1, 0.2), 0.1, 0.0, 0.2),  # from 3 to 5 seeds: the range
        ((1.0, 1.0, 1.0), 1.0, 1.0, 1.0),
        ((-0.3, -0.2, 0.5, 0.1), -0.05, -0.3, 0.5),
        ((1.5, 2.0, 1.6, 1.7, 1.8), 1.7, 1.5, 2.0),
        ((0.3, 0.1, 0.2, 0.4, 0.6, 0.5), 0.35, 0.1, 0.6),  # six: all values enclose the median
        (tuple(0.05 * n for n in range(10)), 0.225, 0.05, 0.4),  # ten: the second and the ninth
    ],
)
def test_the_share_of_each_seed_with_its_median(
    kept: tuple[float, ...], median: float, low: float, high: float
) -> None:
    share = share_of(*losses(*kept))
    assert share.why == "" and share.by_seed == pytest.approx(kept)
    assert (share.median, share.low, share.high) == pytest.approx((median, low, high))


@pytest.mark.parametrize(
    ("loss", "none", "sdpa", "fact"),
    [
        ([2.3] * 2, [2.5] * 2, [2.1] * 2, "two seeds"),
        ([], [], [], "no seed"),
        ([2.3, math.inf, 2.3], [2.5] * 3, [2.1] * 3, "it diverged"),
        ([2.3, 2.3, math.nan], [2.5] * 3, [2.1] * 3, "it diverged"),
        ([2.3] * 3, [2.5, 2.5, math.inf], [2.1] * 3, "none diverged"),
        ([2.3] * 3, [2.5] * 3, [math.inf, 2.1, 2.1], "sdpa diverged"),
        ([2.3] * 3, [2.5] * 3, [2.5, 2.4, 2.4], "nothing measurable"),  # gives 0 at one seed
        ([2.3] * 3, [2.1] * 3, [2.5] * 3, "nothing measurable"),  # is worse than none
        ([2.3] * 3, [2.5, 2.6, 2.7], [2.4, 2.4, 2.4], "nothing measurable"),  # 0.2, sd 0.1
    ],
)
def test_no_number_and_why(
    loss: list[float], none: list[float], sdpa: list[float], fact: str
) -> None:
    share = share_of(loss, none, sdpa)
    assert math.isnan(share.median) and share.by_seed == () and fact in share.why
    assert "%" not in share_sentence("unscaled", share) and fact in share_sentence(
        "unscaled", share
    )


def test_five_times_the_spread_is_enough() -> None:
    just, below = ([2.5 + 0.1 * x for x in (k - 1, k, k + 1)] for k in (5.01, 4.99))
    assert share_of([2.5] * 3, just, [2.5] * 3).why == ""  # a standard deviation of 0.1
    assert share_of([2.5] * 3, below, [2.5] * 3).why


@pytest.mark.parametrize(
    ("kept", "facts"),
    [
        ((-0.3, -0.2, -0.1), ("worse than no attention", "-20 %", "-30 % to -10 %")),
        ((0.04, 0.05, 0.07), ("keeps 5 % of what attention gives", "from 4 % to 7 %", "3 seeds")),
        ((1.5, 1.5, 1.5), ("1.50 times as much as softmax attention",)),
        ((0.1, 0.1, 0.1, 0.1, 0.1, 0.2), ("keeps 10 %", "95 % interval", "6 seeds")),
    ],
)
def test_the_words(kept: tuple[float, ...], facts: tuple[str, ...]) -> None:
    said = share_sentence("unscaled", share_of(*losses(*kept)))
    assert all(fact in said for fact in (*facts, "at this learning rate")), said


def test_a_small_share_keeps_its_sign() -> None:
    assert [percent(x) for x in (0.004, -0.004, 0.0499, 0.8, -0.31)] == [
        *("0.4 %", "-0.4 %", "5 %", "80 %", "-31 %")
    ]


def sweep(root: Path, unscaled: tuple[float, ...], *overrides: str, **measures: float) -> None:
    """Runs of none, sdpa and unscaled; unscaled keeps given shares and has given measures."""
    for seed, (x, none, sdpa) in enumerate(zip(*losses(*unscaled), strict=True)):
        status = "finished" if math.isfinite(x) else "diverged"
        write_run(root, "none", seed, none, *overrides)
        write_run(root, "sdpa", seed, sdpa, *overrides, future_mass=0.0)
        write_run(root, "unscaled", seed, x, *overrides, status=status, **measures)


def test_sentence_table_and_figure_say_the_same(tmp_path: Path) -> None:
    sweep(tmp_path / "lab", (0.04, 0.05, 0.07))
    compared = compare(read_runs(tmp_path))
    assert shares_of(compared)["unscaled"].median == pytest.approx(0.05)
    table = comparison_table(compared).set_index("run")
    assert table.keeps["unscaled"] == pytest.approx(0.05) and table.keeps["none"] == 0
    assert "5 %" in as_text(comparison_table(compared))
    (said,) = [x for x in report.all_sentences(compared) if "what attention gives" in x]
    assert said.startswith("unscaled keeps 5 %") and "at this learning rate" in said
    (shown,) = (x for x in draw_comparison(compared).axes if "attention gives" in x.get_title())
    assert [x.get_text() for x in shown.get_yticklabels()] == ["unscaled", "none"]
    points = shown.lines[0].get_xdata() if len(shown.lines[0].get_xdata()) == 3 else ()
    assert sorted([*points, *shown.lines[1].get_xdata()])[-3:] == pytest.approx([4, 5, 7])


@pytest.mark.parametrize(
    ("kept", "measures", "fact"),
    [
        ((0.04, 0.05), {}, "two seeds"),
        ((0.04, 0.05, 0.07), {"future_mass": 0.5}, "reads the future"),
        ((0.04, math.inf, 0.07), {}, "diverged"),
    ],
)
def test_a_comparison_without_a_share_says_why(
    tmp_path: Path, kept: tuple[float, ...], measures: dict[str, float], fact: str
) -> None:
    sweep(tmp_path / "lab", kept, **measures)
    compared = compare(read_runs(tmp_path))
    (said,) = [x for x in report.all_sentences(compared) if "No share" in x]
    assert fact in said
    table = comparison_table(compared).set_index("run")
    assert math.isnan(table.keeps["unscaled"])
    (panel,) = (x for x in draw_comparison(compared).axes if "attention gives" in x.get_title())
    assert fact in " ".join(" ".join(x.get_text() for x in panel.texts).split())


def test_no_share_without_none_or_beside_another_baseline(tmp_path: Path) -> None:
    sweep(tmp_path / "lab", (0.04, 0.05, 0.07))
    frame = read_runs(tmp_path)
    assert shares_of(compare(frame[frame.attn != "none"])) == {}
    assert shares_of(compare(frame, "unscaled")) == {}
    assert shares_of(compare(frame, "none")) == {}


def test_best_rates_are_said_to_be_best(tmp_path: Path) -> None:
    for rate, worse in (("0.001", 0.2), ("0.003", 0.0)):
        for seed in range(6):
            for variant, loss in (("none", 2.5), ("sdpa", 2.1), ("unscaled", 2.3 + worse)):
                write_run(tmp_path / "lab", variant, seed, loss, f"optim.lr={rate}")
    best = at_best(read_runs(tmp_path), "lr")
    said = " ".join(report.all_sentences(compare(best.runs, may_differ=best.may_differ)))
    assert "keeps 50 % of what attention gives at their best rates" in said


def test_a_table_without_any_share(tmp_path: Path) -> None:
    """Two seeds are too few for a share in each row."""
    sweep(tmp_path / "lab", (0.04, 0.05))
    assert " - " in as_text(comparison_table(compare(read_runs(tmp_path)))).replace("\n", " ")
