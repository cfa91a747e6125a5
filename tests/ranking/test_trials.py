"""Rates, readings and verdicts of the ranking, on invented rows."""

import copy
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from attnlab.claims.configs import compose_config, hydra_conf
from attnlab.claims.reproduce import find_paths
from attnlab.errors import BadInput
from attnlab.ranking.page import in_words
from attnlab.ranking.protocol import Contestant, Trial, parse, read_protocol
from attnlab.ranking.rank import Ranking
from attnlab.ranking.trials import Course, read
from attnlab.ranking.verdicts import judge_cell, make_table
from tests.conftest import CONF, ROOT
from tests.ranking.simulated import BEST, PROTOCOL, protocol, row_of, run, settings_of

TEXT, RECALL = protocol().tasks


def full(quick=False, make=row_of):
    rows, of = {}, protocol()
    for arm, task in of.cells(quick):
        run(Course(of, arm, task, rows), quick, make)
    return of, rows


def test_a_task_without_positions_is_one_for_arms_with_and_without_them():
    published = read_protocol(ROOT / "experiments" / "ranking")
    tasks = {task.name: task for task in published.tasks}
    for name, equal in (("induction at 128", True), ("text", False)):
        with_, without = (
            published.trial(published.arms[arm], tasks[name], 1e-3, 300, 0)
            for arm in ("rotary", "rotary only")
        )
        assert (with_ == without) is equal


def test_the_published_protocol_is_valid_and_large_enough():
    published = read_protocol(ROOT / "experiments" / "ranking")
    variants = [arm for arm in published.arms.values() if not arm.control]
    whole = [task for task in published.tasks if not task.only]
    assert len(variants) >= 17 and len(whole) >= 5
    for task in published.tasks:
        assert not set(task.selection_seeds) & set(published.test)
    assert len(published.test) == 10
    for task in published.tasks:
        assert all(1.7 < b / a < 1.9 for a, b in pairwise(task.rates))
        if task.only:  # controls in every column
            assert {arm.name for arm in published.arms.values() if arm.control} <= {*task.only}
    for size in (None, "baby"):
        for task in read_protocol(ROOT / "experiments" / "ranking", size).tasks:
            with hydra_conf(CONF):
                (cfg, _) = compose_config((*task.overrides, "attn=sdpa"), 0, ROOT / "experiments")
            assert f"{cfg.model.n_head} heads" in task.says
            assert f"batches of {cfg.data.batch_size}" in task.says
            assert cfg.optim._target_.endswith("adamw") and cfg.optim.weight_decay == 0.1
            assert size or cfg.model.dropout == 0
    for arm in variants:  # the same but for its attention
        assert arm.overrides[1:] == published.arms[arm.partner].overrides[1:]


def test_every_published_contestant_passes_the_checkup(tmp_path):
    paths = find_paths(ROOT / "experiments", CONF, tmp_path, "full")
    with hydra_conf(paths.conf):
        ranking = Ranking(paths, [], quick=False)
        for arm in ranking.protocol.arms.values():
            ranking.checked_model(arm)
        faulty = replace(ranking.protocol.arms["linear"], overrides=("attn=unscaled",))
        with pytest.raises(BadInput, match="linear does not pass the checkup"):
            ranking.checked_model(faulty)


def test_a_course_tries_the_grid_extends_it_at_an_edge_and_checks_the_neighbors():
    of, rows = protocol(), {}
    course = Course(of, of.arms["bad"], TEXT, rows)
    run(course)
    short, _ = course.choose(300)
    # The best rate, 1.8e-3, lies below the grid: extended twice, by the factor of the edge.
    assert sorted(short.losses) == [0.00093, 0.0017, 3.1e-3, 5.6e-3, 1e-2]
    assert short.rate == 0.0017 and not short.at_edge
    long, _ = course.choose(1200)
    assert sorted(long.losses) == [0.00093, 0.0017, 3.1e-3]  # the neighbors
    before_4n = {t: row for t, row in rows.items() if settings_of(t)[2] == 300}
    seeds = {t.seed for t in rows if settings_of(t)[2] == 1200}
    assert seeds == {1000, 1001, *range(10)}
    # The six of a rate that was tried at 300 steps continue that run.
    trained = {n.rate: n.further for n in Course(of, course.arm, TEXT, before_4n).needed(False)}
    assert trained == {0.00093: 900, 0.0017: 900, 3.1e-3: 900}
    # A test run is read at both lengths: 10 runs, and none of 300 steps on a test seed.
    assert not [t for t in rows if settings_of(t)[2] == 300 and t.seed < 10]
    assert run(course) == 0


def test_a_best_rate_that_stays_at_the_edge_is_said(monkeypatch):
    monkeypatch.setitem(BEST, "attn=bad", 1e-5)
    of, rows = full(quick=True)
    table = make_table(of, rows, quick=True)
    assert table.cells["bad", "text", 300].choice.at_edge
    assert table.edges == ["bad on text (300 steps): 0.00093"]


def test_a_task_may_have_selection_seeds_of_its_own():
    tasks = copy.deepcopy(PROTOCOL["tasks"])
    tasks["text"]["selection_seeds"] = [1000, 1001, 1002, 1003]
    of, rows = parse(PROTOCOL | {"tasks": tasks}), {}
    course = Course(of, of.arms["sdpa"], of.tasks[0], rows)
    assert run(course, quick=True) == 4 * 4 + 10  # as below, with four seeds for each rate
    assert {t.seed for t in rows} == {*range(1000, 1004), *range(10)}
    assert of.tasks[1].selection_seeds == (1000, 1001)


def test_quick_runs_are_read_by_the_full_ranking_where_they_suffice():
    of, rows = protocol(), {}
    course = Course(of, of.arms["sdpa"], TEXT, rows)
    assert run(course, quick=True) == 18  # 3 rates and one beyond the edge, 2 seeds each, and 10
    assert [len(course.readings(n)) for n in (300, 1200)] == [10, 0]
    before = course.readings(300)
    run(course)
    assert course.readings(300) == before and len(course.readings(1200)) == 10


def test_a_solved_task_needs_no_check_and_counts_at_both_lengths():
    def solved(trial, task):
        row = row_of(trial, task)
        if task.floor is not None:
            best = settings_of(trial)[1] == 1.8e-3
            row["values"]["curve"]["accuracy"] = [0.5, *([] if best else [0.5]), 1.0, 1.0]
            row["values"]["val_accuracy"] = 0.993  # of all sequences
            row |= {"status": "stopped"}
        return row

    of, rows = protocol(), {}
    course = Course(of, of.arms["sdpa"], RECALL, rows)
    assert run(course, make=solved) == 6 + 10
    assert {(x.value, x.score, x.reached) for x in course.readings(400)} == {
        (0.993, 50 / 400 - 1, 50)
    }
    assert {x.score for x in course.readings(100)} == {50}


@pytest.mark.parametrize(("last", "further"), [((0.99, 1.0), 300), ((1.0, 1.0), 400)])
def test_a_run_that_has_just_solved_its_task_is_not_continued(last, further):
    of = protocol()
    course = Course(of, of.arms["sdpa"], RECALL, {})
    for needed in list(course.needed(quick=True)):
        trial = of.trial(course.arm, RECALL, needed.rate, 100, needed.seed)
        row = course.rows[trial] = row_of(trial, RECALL) | {"status": "finished"}
        second = 0.95 if needed.rate == 1.8e-3 else 0.5  # the best rate, so no other is tried
        row["values"]["curve"]["accuracy"] = [0.5, second, *last]
    assert {needed.further for needed in course.needed(quick=False)} == {further}


def test_a_rate_that_solves_the_task_only_after_n_steps_is_checked_after_a_kill_too():
    rows, of = {}, protocol()
    course = Course(of, of.arms["sdpa"], RECALL, rows)
    run(course)
    best, whole = course.choose(100)[0].rate, set(course.choose(400)[0].losses)
    at_best = [row for t, row in rows.items() if settings_of(t)[1:] == (best, 400)]
    assert len(whole) > 1 and at_best and all(row["status"] == "stopped" for row in at_best)
    for trial in [t for t in rows if settings_of(t)[1] != best and settings_of(t)[2] == 400]:
        del rows[trial]
    run(course)
    assert set(course.choose(400)[0].losses) == whole


def test_a_task_with_a_further_length_is_never_compared_by_steps_and_says_which_runs_ended():
    length = replace(RECALL, length=128)
    rows = {}
    for arm in (of := replace(protocol(), tasks=(TEXT, length))).arms.values():
        course = Course(of, arm, length, rows)
        run(course, make=lambda trial, task: _at_length(row_of(trial, task)))
    cell = judge_cell(of, rows, of.arms["good"], length, 400)
    assert (cell.unit, cell.ended) == ("points", 10) and "10 ended early" in in_words(cell)
    row = _at_length(next(iter(rows.values())))
    row["values"]["accuracy_at_length"] = None  # NaN
    assert read(row, length, 400).score == math.inf and math.isnan(read(row, length, 400).value)


def _at_length(row):
    return row | {"values": row["values"] | {"accuracy_at_length": 0.5}}


def test_cells_with_the_same_runs_count_once():
    content = copy.deepcopy(PROTOCOL)
    content["arms"]["twin"] = {"says": "bad again", "overrides": ["attn=bad"]}
    rows, of = {}, parse(content)
    for arm, task in of.cells(quick=False):
        run(Course(of, arm, task, rows))
    table = make_table(of, rows)
    assert {c.arm.name for c in table.repeated} == {"twin"} and len(table.repeated) == 4
    assert len(table.judged) == len(make_table(protocol(), rows).judged)


def test_scores_rank_diverged_below_slow_below_fast():
    trial = protocol().trial(Contestant("x", "", ("attn=x",), "sdpa"), RECALL, 1e-3, 400, 0)
    base = row_of(trial, RECALL)

    def score(accuracies, steps=100, **values):
        row = {**base, "values": base["values"] | values}
        row["values"]["curve"] = {"every": 25, "accuracy": accuracies, "losses": {}}
        return read(row, RECALL, steps).score

    fast, slow = score([0.5, 0.95, 0.95, 0.95]), score([0.1, 0.2, 0.5, 0.95])
    never, less = score([0.1, 0.2, 0.3, 0.89]), score([0.9 - 0.01, 0.2, 0.3, 0.5])
    assert (fast, slow) == (50, 100) and slow < never < less < math.inf
    assert score([0.5], diverged_at_step=30) == math.inf
    assert score([0.5, 0.6, 0.7, 0.8], diverged_at_step=130) == pytest.approx(120)


def test_better_worse_and_controls_by_ten_of_ten():
    of, rows = full()
    table = make_table(of, rows)
    verdicts = {key: cell.verdict for key, cell in table.cells.items()}
    for task, steps in (("text", 300), ("text", 1200), ("recall", 100)):
        assert verdicts["sdpa", task, steps] == "baseline"
        assert verdicts["again", task, steps] == "open"
        assert verdicts["slow", task, steps] == "worse"
        assert verdicts["good", task, steps] == "better"
        assert verdicts["bad", task, steps] == "worse"
    assert len(table.judged) == 16 + 2  # and the pair
    assert table.false_cells == pytest.approx(18 * 2 / 1024)
    assert table.broken == []  # also on recall after 400 steps
    assert table.cells["slow", "recall", 400].unit == "steps"  # all runs solve it
    slow = table.cells["slow", "text", 300]
    assert slow.choice.rate == pytest.approx(0.1 * table.cells["sdpa", "text", 300].choice.rate)
    middle, low, high = table.cells["good", "text", 300].difference
    assert low < middle < high < 0


def test_a_control_that_fails_is_named():
    def spoiled(trial, task):
        row = row_of(trial, task)
        if trial.seed >= 100 and trial.seed < 1000 and task.floor is None:
            row["values"]["curve"]["losses"] = {
                k: x - 0.5 for k, x in row["values"]["curve"]["losses"].items()
            }
        return row

    of, rows = full(quick=True, make=spoiled)
    assert make_table(of, rows, quick=True).broken == ["again is better on text (300 steps)"]


def test_nine_seeds_are_no_verdict():
    of, rows = full(quick=True)
    course = Course(of, of.arms["good"], TEXT, rows)
    rate = course.choose(300)[0].rate
    del rows[of.trial(course.arm, TEXT, rate, 300, 9)]
    assert judge_cell(of, rows, course.arm, TEXT, 300).verdict == "not finished"


@pytest.mark.parametrize(("seeds", "finite"), [(3, True), (6, False), (10, False)])
def test_diverged_seeds_are_worse_and_counted(seeds: int, finite: bool):
    def diverging(trial, task):
        row = row_of(trial, task)
        if trial.overrides[-3:] and "attn=good" in trial.overrides and trial.seed < seeds:
            row |= {"status": "diverged"}
            row["values"] |= {"diverged_at_step": 200}
            row["values"]["curve"]["losses"] = {}
        return row

    of, rows = full(quick=True, make=diverging)
    cell = make_table(of, rows, quick=True).cells["good", "text", 300]
    assert cell.diverged == seeds
    assert (cell.number == f"{seeds} diverged") is not finite
    assert cell.verdict == ("worse" if seeds == 10 else "open")
    if finite:  # the median of ten of which three are the largest
        losses = sorted(x for x in cell.accuracies if x == x)
        assert cell.value == pytest.approx((losses[4] + losses[5]) / 2)


def test_differences_that_are_not_known_may_be_any_number():
    def diverging(trial, task):
        row = row_of(trial, task)
        if trial.seed < 2:  # of both: the differences of two seeds are not known
            row |= {"status": "diverged"}
            row["values"] |= {"diverged_at_step": 200}
        return row

    of, rows = full(quick=True, make=diverging)
    cell = make_table(of, rows, quick=True).cells["good", "text", 300]
    middle, low, high = cell.difference  # the second smallest and the second largest
    assert (low, high) == (-math.inf, math.inf) and math.isnan(middle)
    assert cell.interval == "unknown (-∞ to +∞)" and cell.verdict == "open"


def test_equal_overrides_of_changed_code_are_other_runs():
    of = protocol()
    arm = Contestant("mine", "", ("attn=sdpa", "attn._target_=mine.A"), "sdpa", code="1")
    first = of.trial(arm, TEXT, 1e-3, 300, 0)
    assert first != of.trial(replace(arm, code="2"), TEXT, 1e-3, 300, 0)
    assert isinstance(first, Trial)


def test_a_layer_with_a_convolution_takes_further_tasks_with_its_partner():
    tasks = PROTOCOL["tasks"] | {
        "bare": PROTOCOL["tasks"]["recall"] | {"only": ["sdpa"], "convolution": True}
    }
    own = Contestant("mine", "", ("attn=sdpa",), "sdpa", own=True)
    for arm, expected in (
        (own, ["text", "recall"]),
        (replace(own, convolution=True), ["text", "recall", "bare"]),
        (replace(own, convolution=True, partner="good"), ["text", "recall"]),
    ):
        of = parse(PROTOCOL | {"tasks": tasks, "arms": PROTOCOL["arms"]})
        cells = replace(of, arms={**of.arms, "mine": arm}).cells(quick=False)
        assert [task.name for each, task in cells if each is arm] == expected


def test_an_unknown_partner_is_refused():
    arms = PROTOCOL["arms"] | {"x": {"says": "", "partner": "nobody"}}
    with pytest.raises(ValueError, match="no partner nobody"):
        parse(PROTOCOL | {"arms": arms})
