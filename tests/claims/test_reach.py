"""The words of a verdict say how far it reaches: length, rate, processor, room, other rows."""

import subprocess
from dataclasses import replace

import pytest
import yaml

from attnlab.claims.claim import Claim
from attnlab.claims.claim_page import power_in_words, verdict_and_where
from attnlab.claims.finding import Finding
from attnlab.claims.judge import power
from attnlab.claims.judged_claim import JudgedClaim, judge_claim
from attnlab.claims.reach import reach_line, reasons_for_words, risk_in_words, verdict_words
from attnlab.claims.trials import Run
from attnlab.runs.seed_statistics import chance_of_wrong_verdict

RATES = [0.001, 0.003, 0.01]
SEEDS = range(10)


def row(words, seed, loss, steps=300, **more):
    values = {"val_loss": loss, "steps": steps, "tokens": 768 * steps, "parameters": 106880}
    return {"overrides": list(words), "seed": seed, "status": "finished", "commit": "",
            "machine": "AMD EPYC, torch 2", "instruction_set": "AVX2",
            "values": values | more}  # fmt: skip


def claim_of(folder, *, predictions, **settings):
    file = folder / "experiments" / "mine" / "claim.yaml"
    arms = {"a": ["attn=unscaled"], "b": ["attn=sdpa"], "c": ["attn=flipped"]}
    base = ["preset=micro", "probes=none"]
    return Claim(says="A.", base=base, first_seed=0, arms=arms, predictions=predictions,
                 file=file, **settings)  # fmt: skip


def rows_of(claim, of_arm, best=0.003):
    """Rows of every arm that a claim needs; `of_arm` is its loss. The best rate loses nothing."""
    rows = {}
    for prediction in claim.predictions.values():
        for steps in prediction.lengths or (None,):
            for name, arm in claim.arms_of(prediction, steps).items():
                for rate in prediction.rates or (None,):
                    loss = of_arm[name] + (0.0 if rate in (None, best) else 0.5)
                    for seed in [*SEEDS, 1000, 1001, 1002]:
                        run = arm.run(seed, rate)
                        rows[run] = row(run.overrides, seed, loss, steps or 300)
    return rows


def prediction(**settings):
    return {"says": "P.", "arms": ["a", "b"], "above": 0.0, "rates": RATES,
            "lengths": [300, 1200]} | settings  # fmt: skip


ONE_RATE = {"rates": ()}
ONE_LENGTH = {"lengths": [300]}


@pytest.mark.parametrize(
    ("settings", "of_claim", "again", "words"),
    [
        ({}, {}, True, "holds"),
        (ONE_LENGTH, {}, True, "holds at 300 steps"),
        (ONE_RATE, {}, True, "holds at one rate"),
        ({}, {}, False, "holds on one processor"),
        (ONE_LENGTH | ONE_RATE, {}, False, "holds at 300 steps, at one rate, on one processor"),
        ({"lengths": [300, 600]}, {}, True, "holds at one length each (300, 600 steps)"),
        (ONE_LENGTH | ONE_RATE | {"exempt": "leak"}, {}, False, "holds"),
        (ONE_LENGTH | ONE_RATE, {"exempt": "budget"}, False, "holds"),
        (ONE_LENGTH | {"role": "against"}, {}, True, "does not hold at 300 steps"),
        ({}, {"withdrawn": "Why."}, False, "undecided"),
    ],
)
def test_a_verdict_names_what_it_lacks(tmp_path, settings, of_claim, again, words):
    claim = claim_of(tmp_path, predictions={"p": prediction(**settings)}, **of_claim)
    rows = rows_of(claim, {"a": 2.0, "b": 1.0})
    tests = {run: of_run for run, of_run in rows.items() if run.seed < 1000}
    judged = judge_claim(claim, rows, again=tests if again else None)
    assert verdict_words(judged) == words
    lacking = {"steps": "second length", "rate": "best rate", "processor": "second processor"}
    for word, reason in lacking.items():
        assert (word in words) == (reason in reasons_for_words(judged))


@pytest.mark.parametrize(
    ("stopped", "timed", "words", "line"),
    [
        ("", False, "holds at 300 steps, at one rate, on one processor", ", 300 steps, "),
        ("a", False, "holds at 300 steps, at one rate, on one processor", ", 300 steps, "),
        ("ab", False, "holds at one rate, on one processor", "up to 300 steps where a callback "),
        ("ab", True, "holds at 300 steps, at one rate, on one processor", ", 300 steps, "),
    ],
)
def test_steps_after_which_a_callback_ended_all_runs_are_no_limit(
    tmp_path, stopped, timed, words, line
):
    settings = ONE_LENGTH | ONE_RATE
    claim = claim_of(tmp_path, predictions={"p": prediction(**settings)})
    if timed:  # how many steps a run has depends on the machine
        claim = claim.model_copy(update={"base": (*claim.base, "+trainer.max_time=00:00:01:00")})
    rows = rows_of(claim, {"a": 3.0, "b": 2.0})
    for run, of_run in rows.items():
        if ("attn=unscaled" in run.overrides and "a" in stopped) or (
            "attn=sdpa" in run.overrides and "b" in stopped
        ):
            of_run["status"] = "stopped"
    judged = judge_claim(claim, rows)
    assert verdict_words(judged) == words
    assert line in reach_line(judged)


def test_the_line_of_reach_has_the_steps_of_runs_that_ended_and_of_others(tmp_path):
    one, other = prediction(**ONE_LENGTH, **ONE_RATE), prediction(lengths=[1200], **ONE_RATE)
    claim = claim_of(tmp_path, predictions={"p": one, "q": other})
    rows = rows_of(claim, {"a": 3.0, "b": 2.0})
    for of_run in rows.values():
        if of_run["values"]["steps"] == 300:
            of_run["status"] = "stopped"
    assert ", 1,200 steps and up to 300 steps where" in reach_line(judge_claim(claim, rows))


def test_the_line_of_reach_says_how_much_was_repeated(tmp_path):
    claim = claim_of(tmp_path, predictions={"p": prediction()})
    rows = rows_of(claim, {"a": 2.0, "b": 1.0})
    again = {run: of_run for run, of_run in rows.items() if run.seed < 1000}
    assert reach_line(judge_claim(claim, rows, again=again)).endswith("again on AMD EPYC (AVX2)")
    part = {run: of_run for run, of_run in again.items() if of_run["values"]["steps"] == 300}
    assert reach_line(judge_claim(claim, rows, again=part)).endswith("for 1 of 2 predictions")


def test_a_best_rate_at_the_end_of_its_grid_does_not_count(tmp_path):
    claim = claim_of(tmp_path, predictions={"p": prediction()})
    arm = claim.arms_of(claim.predictions["p"], 300)["a"]
    rows = {}
    for steps in (300, 1200):
        for name, of in claim.arms_of(claim.predictions["p"], steps).items():
            for rate in (*RATES, 0.033, 0.11):  # the higher the better, and no higher one is tried
                for seed in [*SEEDS, 1000, 1001, 1002]:
                    run = of.run(seed, rate)
                    rows[run] = row(run.overrides, seed, (name == "a") - rate, steps)
    assert arm.choose(rows).at_edge
    judged = judge_claim(claim, rows, again=rows)
    assert verdict_words(judged) == "holds at a rate at the end of its grid"
    assert "end of their grid" in reach_line(judged)


def test_a_sentence_reaches_as_far_as_the_predictions_that_it_needs(tmp_path):
    far = prediction()
    near = prediction(lengths=[300], arms=["c", "b"])
    says = {}
    for name, second in (("holds", {}), ("does not hold", {"above": 2.0})):
        for role in ("for", "secondary"):
            predictions = {"p": far, "q": near | second | {"role": role}}
            claim = claim_of(tmp_path, predictions=predictions)
            rows = rows_of(claim, {"a": 2.0, "b": 1.0, "c": 2.0})
            says[name, role] = verdict_words(judge_claim(claim, rows, again=rows))
    assert says["holds", "for"] == "holds at 300 steps"  # it needs both
    assert says["holds", "secondary"] == "holds"
    assert says["does not hold", "for"] == "holds in part at 300 steps"
    far_and_near = {"p": far | {"above": 2.0}, "q": near | {"above": 2.0}}
    claim = claim_of(tmp_path, predictions=far_and_near)
    rows = rows_of(claim, {"a": 2.0, "b": 1.0, "c": 2.0})
    assert verdict_words(judge_claim(claim, rows, again=rows)) == "does not hold"  # one is enough


def test_two_lengths_may_be_two_predictions(tmp_path):
    first, second = prediction(lengths=[300]), prediction(lengths=[1200], above=0.1)
    claim = claim_of(tmp_path, predictions={"p": first, "late": second})
    rows = rows_of(claim, {"a": 2.0, "b": 1.0})
    assert verdict_words(judge_claim(claim, rows, again=rows)) == "holds"
    turned = second | {"arms": ["b", "a"], "above": -9.0, "below": 0.0}  # another question
    other = claim_of(tmp_path, predictions={"p": first, "late": turned})
    rows = rows_of(other, {"a": 2.0, "b": 1.0})
    assert verdict_words(judge_claim(other, rows, again=rows)).endswith("(300, 1,200 steps)")
    opposite = second | {"above": 2.0}  # the length decides, so neither reaches beyond its own
    both = claim_of(tmp_path, predictions={"p": first, "late": opposite})
    rows = rows_of(both, {"a": 2.0, "b": 1.0})
    words = "holds in part at one length each (300, 1,200 steps)"
    assert verdict_words(judge_claim(both, rows, again=rows)) == words


def test_a_length_that_another_instruction_set_turns_is_no_second_length(tmp_path):
    predictions = {"p": prediction(**ONE_LENGTH), "late": prediction(lengths=[1200])}
    control = {"q": prediction(arms=["c", "b"], above=9.0)}  # false, so the sentence holds in part
    claim = claim_of(tmp_path, predictions=predictions | control)
    losses = {"a": 2.0, "b": 1.0, "c": 2.0}
    rows, again = rows_of(claim, losses), rows_of(claim, losses)
    assert verdict_words(judge_claim(claim, rows, again=again)) == "holds in part"
    for run, of_run in again.items():
        if "attn=unscaled" in run.overrides and "trainer.max_steps=1200" in run.overrides:
            of_run["values"] = of_run["values"] | {"val_loss": 0.0}
    assert verdict_words(judge_claim(claim, rows, again=again)) == "holds in part at 300 steps"


def others_of(
    folder, loss_of_unscaled, *, rate="0.01", last=None, seeds=range(20, 30), settings=()
):
    """Rows of another claim, with the words of the same arms in another order."""
    rows = {}
    for name, loss in (("unscaled", loss_of_unscaled), ("sdpa", 1.0)):
        words = (f"attn={name}", "preset=micro", "trainer.max_steps=300", *settings,
                 "probes=none", f"optim.lr={rate}", f"optim.min_lr={last or rate}")  # fmt: skip
        rows |= {Run(words, seed): row(words, seed, loss) for seed in seeds}
    return {folder / "experiments" / "other" / "rows.jsonl": rows}


@pytest.mark.parametrize(
    ("there", "verdict"),
    [
        ({"loss_of_unscaled": 2.0}, "holds"),
        ({"loss_of_unscaled": 0.5}, "undecided"),
        ({"loss_of_unscaled": 0.5, "seeds": range(20, 29)}, "holds"),  # nine seeds decide nothing
        ({"loss_of_unscaled": 0.5, "seeds": range(1000, 1010)}, "holds"),  # those of pilots
        ({"loss_of_unscaled": 0.5, "settings": ["model.n_head=2"]}, "holds"),  # another model
        ({"loss_of_unscaled": 0.5, "settings": ["data.batch_size=6"]}, "holds"),
        ({"loss_of_unscaled": 0.5, "settings": ["trainer.max_steps=600"]}, "holds"),
    ],
)
def test_rows_of_another_file_that_say_otherwise_make_it_undecided(tmp_path, there, verdict):
    claim = claim_of(tmp_path, predictions={"p": prediction(lengths=[300])})
    rows = rows_of(claim, {"a": 2.0, "b": 1.0})
    judged = judge_claim(claim, rows, committed=others_of(tmp_path, **there))
    assert judged.verdict == verdict
    assert ("other" in verdict_and_where(judged)) == (verdict == "undecided")
    assert ("other" in reasons_for_words(judged)) == (verdict == "undecided")


@pytest.mark.parametrize(
    ("seeds", "rate", "last", "found"),
    [
        (SEEDS, "0.003", "0.0003", False),  # the same trainings, in another file
        (range(5, 15), "0.003", "0.0003", False),  # five of them
        (range(20, 30), "0.003", "0.0003", True),
        (SEEDS, "0.003", "0.003", True),  # the rate does not decay
        (SEEDS, "0.01", "0.001", True),
    ],
)
def test_the_same_trainings_are_no_second_answer(tmp_path, seeds, rate, last, found):
    claim = claim_of(tmp_path, predictions={"p": prediction(**ONE_LENGTH)})
    committed = others_of(tmp_path, 2.0, rate=rate, last=last, seeds=seeds)
    judged = judge_claim(claim, rows_of(claim, {"a": 2.0, "b": 1.0}), committed=committed)
    assert bool(judged.elsewhere) == found


def test_one_arm_of_the_same_training_beside_another_rate_is_an_answer(tmp_path):
    claim = claim_of(tmp_path, predictions={"p": prediction(**ONE_LENGTH)})
    same = others_of(tmp_path, 0.5, rate="3e-3", last="0.0003", seeds=SEEDS)
    other = others_of(tmp_path, 0.5, seeds=SEEDS)
    ((file, rows),) = same.items()
    mixed = {run: of_run for run, of_run in rows.items() if "attn=sdpa" in run.overrides}
    for run, of_run in other[file].items():
        if "attn=unscaled" in run.overrides:
            mixed[run] = of_run
    own = rows_of(claim, {"a": 2.0, "b": 1.0})
    assert judge_claim(claim, own, committed={file: mixed}).verdict == "undecided"
    assert judge_claim(claim, own, committed=same).verdict == "holds"


def test_what_is_open_here_and_decided_elsewhere_may_contradict_the_sentence(tmp_path):
    """As needs_positions: false with one layer, open with two, where the ranking found it true."""
    predictions = {"one": prediction(**ONE_LENGTH, above=2.0), "two": prediction(**ONE_LENGTH)}
    claim = claim_of(tmp_path, predictions=predictions)
    rows = rows_of(claim, {"a": 2.0, "b": 1.0})
    for run, of_run in rows.items():
        if "attn=unscaled" in run.overrides and run.seed == 0:
            of_run["values"]["val_loss"] = 0.0  # one of ten misses
    alone = judge_claim(claim, rows)
    assert alone.verdict == "does not hold"
    committed = others_of(tmp_path, 2.0)
    assert judge_claim(claim, rows, committed=committed).verdict == "undecided"


def test_a_run_that_a_callback_ended_says_nothing_of_all_its_steps(tmp_path):
    claim = claim_of(tmp_path, predictions={"p": prediction(**ONE_LENGTH)})
    rows = rows_of(claim, {"a": 2.0, "b": 1.0})
    committed = others_of(tmp_path, 0.5)
    for status, verdict in (("finished", "undecided"), ("stopped", "holds")):
        for of_run in next(iter(committed.values())).values():
            of_run["status"] = status
        assert judge_claim(claim, rows, committed=committed).verdict == verdict


def test_a_run_is_read_before_its_end_only_at_a_constant_rate(tmp_path):
    claim = claim_of(tmp_path, predictions={"p": prediction(lengths=[300])})
    rows = rows_of(claim, {"a": 2.0, "b": 1.0})
    for last, verdict in (("0.01", "undecided"), ("0.001", "holds")):
        there = {}
        for name, loss in (("unscaled", 0.5), ("sdpa", 1.0)):
            words = ("preset=micro", f"attn={name}", "trainer.max_steps=1200", "optim.lr=0.01",
                     f"optim.min_lr={last}")  # fmt: skip
            curve = {"every": 300, "accuracy": [], "losses": {"300": loss}}
            for seed in SEEDS:
                there[Run(words, seed)] = row(words, seed, 9.0, 1200, curve=curve)
        committed = {tmp_path / "experiments" / "ranking" / "rows.jsonl": there}
        assert judge_claim(claim, rows, committed=committed).verdict == verdict


@pytest.mark.parametrize(
    ("bounds", "scores", "verdict"),  # of the first arm, and of the second
    [
        ({"above": 0.05}, (1.0, 1.0), "undecided"),  # a ceiling
        ({"above": 0.05}, (0.5, 0.5), "does not hold"),  # there is room, and no help
        ({"above": 0.05}, (0.96, 0.94), "does not hold"),
        ({"below": 0.05, "role": "against"}, (1.0, 1.0), "undecided"),
        ({"below": 0.05, "role": "against"}, (0.5, 0.5), "does not hold"),
        ({"below": 0.05}, (1.0, 1.0), "holds"),  # no help is denied
        ({"below": -0.05}, (0.0, 0.0), "undecided"),  # a floor
    ],
)
def test_a_help_is_not_denied_where_there_is_no_room(tmp_path, bounds, scores, verdict):
    settings = {"above": -9.0, "metric": "val_accuracy", "unit": "of the answers"} | bounds
    if "above" in bounds:
        settings["below"] = 9.0
    claim = claim_of(tmp_path, predictions={"p": prediction(**ONE_RATE, **ONE_LENGTH) | settings})
    rows = rows_of(claim, {"a": 0.0, "b": 0.0})
    for run, of_run in rows.items():
        is_first = "attn=unscaled" in run.overrides
        of_run["values"]["val_accuracy"] = scores[0 if is_first else 1]
    judged = judge_claim(claim, rows)
    assert judged.verdict == verdict
    assert ("no room" in verdict_and_where(judged)) == (verdict == "undecided")


def test_the_power_of_the_rule_is_computed():
    chances = [power(most, 0.9) for most in (10, 20, 40)]
    assert chances == pytest.approx([0.349, 0.872, 0.996], abs=5e-4)
    assert power(20, 0.85) == pytest.approx(0.66, abs=0.01)  # 17 of 20, as of recall_state
    assert chance_of_wrong_verdict(40) == pytest.approx(1 / 214, rel=0.01)


def declared(claim, repository):
    """The claim as it is read from a new repository, and a commit before and one after it."""
    claim.folder.mkdir(parents=True)

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *words], cwd=repository, check=True,
                              capture_output=True, text=True).stdout.strip()  # fmt: skip

    def commit():
        git("add", "-A")
        git("commit", "-qm", "x", "--allow-empty")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    before = commit()
    content = claim.model_dump(mode="json", exclude={"file"}, exclude_defaults=True)
    claim.file.write_text(yaml.safe_dump(content))
    return Claim.read(claim.file), {"before": before, "after": commit()}


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_measurement_before_tells_the_outcome(tmp_path, made):
    file = tmp_path / "experiments" / "mine" / "claim.yaml"
    measured = {"says": "P.", "arms": ["m"], "above": 0.0, "at_risk": True}
    claim = Claim(says="A.", base=[], first_seed=0, arms={"m": ["measure.f"]},
                  predictions={"p": measured}, file=file)  # fmt: skip
    claim, commits = declared(claim, tmp_path)
    words = ("measure.f",)
    rows = {Run(words, seed): row(words, seed, 1.0) for seed in SEEDS}
    for of_run in rows.values():
        of_run["commit"] = commits["after"]
    pilot = row(words, 1000, 1.0) | {"commit": commits[made]}
    rows[Run(words, 1000)] = pilot
    judged = judge_claim(claim, rows, committed={claim.folder / "rows.jsonl": rows})
    assert judged.was_at_risk(judged.findings[0]) is (made == "after")


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize(
    ("made", "rate", "words", "at_risk"),
    [
        ("before", "0.0056", (), False),  # pilots of another claim, at a rate of their own
        ("after", "0.0056", (), True),
        ("before", "0.0056", ("model.n_head=2",), True),  # another model
        ("before", "0.0056", ("trainer.max_steps=600",), True),
    ],
)
def test_a_pilot_in_another_file_tells_the_outcome(
    tmp_path, made, rate, words, at_risk, is_trained
):
    claim = claim_of(tmp_path, predictions={"p": prediction(**ONE_LENGTH, at_risk=True)})
    claim, commits = declared(claim, tmp_path)
    committed = others_of(tmp_path, 2.0, rate=rate, seeds=range(1000, 1002), settings=words)
    for of_file in committed.values():
        for of_run in of_file.values():
            of_run["commit"] = commits[made]
    rows = rows_of(claim, {"a": 2.0, "b": 1.0}) if is_trained else {}
    for of_run in rows.values():
        of_run["commit"] = commits["after"]
    committed[claim.folder / "rows.jsonl"] = rows
    judged = judge_claim(claim, rows, committed=committed)
    assert judged.was_at_risk(judged.findings[0]) is at_risk
    assert risk_in_words(judged) == ("1 of 1" if at_risk else "0 of 1")
    assert bool(judged.why_exploratory()) != at_risk


def finding(yes, n, most=20) -> Finding:
    arms = {"a": ["x=1"]}
    claim = Claim(says="", base=[], first_seed=0, most_seeds=most, arms=arms,
                  predictions={"p": {"says": "", "arms": ["a"], "above": 0.0}})  # fmt: skip
    rows = {}
    for seed in range(n):
        rows[Run(("x=1",), seed)] = row(["x=1"], seed, 1.0 if seed < yes else -1.0)
    (found,) = judge_claim(claim, rows).findings
    return found


def test_a_page_says_the_power_beside_what_is_decided():
    assert power_in_words(finding(10, 10, most=10)) == "35 %"
    assert power_in_words(finding(10, 10)) == "87 %"
    assert power_in_words(finding(16, 20)) == "87 %"  # decided by ten
    misses = replace(finding(9, 20), values=[])
    assert power_in_words(misses) == ""  # open


def test_what_was_at_risk_is_counted_by_predictions(tmp_path):
    predictions = {"p": prediction(), "q": prediction(role="control")}
    claim = claim_of(tmp_path, predictions=predictions)
    judged = judge_claim(claim, rows_of(claim, {"a": 2.0, "b": 1.0}))
    assert isinstance(judged, JudgedClaim) and risk_in_words(judged) == "0 of 1"
