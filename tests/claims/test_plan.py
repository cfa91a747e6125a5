"""The plan: equal runs are trained once, preconditions, and existing rows."""

from types import SimpleNamespace

import pytest

from attnlab.claims.configs import ConfigResolver, compose_config, hydra_conf
from attnlab.claims.declare import declare
from attnlab.claims.evaluate import evaluate
from attnlab.claims.execute import execute_task
from attnlab.claims.loading import load_claims
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimSet, ClaimTask, make_plan, unmet
from attnlab.claims.progress import duration
from attnlab.claims.reproduce import first_look
from attnlab.claims.rows import RowStore
from attnlab.errors import BadInput
from attnlab.runs.run_directory import RERUN
from tests.claims import own_claim
from tests.conftest import CONF, ROOT

EXPERIMENTS = ROOT / "experiments"


@pytest.fixture
def paths(tmp_path):
    own_claim.write(tmp_path)
    return Paths(tmp_path / "experiments", tmp_path / "conf", tmp_path / "out", "quick")


def planned(paths, count=3, store=None):
    with hydra_conf(paths.conf):
        known = ClaimSet(paths, load_claims(paths.experiments))
        known.store = store or known.store
        return make_plan(known, dict.fromkeys(first_look(known, None), count))


def finished(id_):
    return {"id": id_, "status": "finished", "values": {}, "seconds": 1.0}


def test_equal_runs_are_planned_once(paths):
    plan = planned(paths)
    kinds = [task.kind for task in plan.tasks.values()]
    assert kinds.count("run") == 6  # two arms, three seeds; `kept` uses the same runs
    assert kinds.count("measure") == 3
    assert sum(len(task.metrics) for task in plan.tasks.values()) == 3
    assert len(plan.todo) == 9
    seconds = [task.seconds for task in plan.todo]
    assert seconds == sorted(seconds, reverse=True)  # so that all processes end together


def test_equal_configurations_have_equal_digests(tmp_path):
    with hydra_conf(CONF):
        resolve = ConfigResolver(Paths(EXPERIMENTS, CONF, tmp_path, "quick"))
        plain = resolve(("preset=micro",))
        spelled = resolve(("preset=micro", "attn=sdpa", "optim.lr=3e-3"))
        other = resolve(("preset=micro", "optim.lr=4e-3"))
    assert plain.digest == spelled.digest != other.digest
    assert plain.variant == "sdpa"


def test_a_seed_and_a_name_are_not_an_arm_s_to_set(tmp_path):
    with hydra_conf(CONF), pytest.raises(BadInput, match="seed=3"):
        ConfigResolver(Paths(EXPERIMENTS, CONF, tmp_path, "quick"))(("seed=3",))


def test_overrides_that_do_not_compose_are_named():
    with hydra_conf(CONF), pytest.raises(BadInput, match="attn=unscald"):
        compose_config(("attn=unscald",), seed=0, experiments=EXPERIMENTS)


def test_run_directories_are_readable_and_never_shared(tmp_path):
    with hydra_conf(CONF):
        resolve = ConfigResolver(Paths(EXPERIMENTS, CONF, tmp_path, "quick"))
        first = resolve(("attn=unscaled", "optim.lr=0.01"))
        second = resolve(("attn=unscaled", "optim.lr=0.01", "model.bias=true"))
    directory = first.run_directory(2, tmp_path / "runs")
    assert directory.name == "seed=2"
    assert directory.parent.name == f"attn=unscaled,optim.lr=0.01~{first.digest[:8]}"
    assert directory.parent != second.run_directory(2, tmp_path / "runs").parent


def test_a_precondition_that_is_not_met_is_named_and_nothing_is_run(paths):
    sweep = paths.conf / "experiment" / "mine.yaml"
    sweep.write_text(sweep.read_text().replace("n_head: 2", "n_head: 4"))
    plan = planned(paths)
    with hydra_conf(paths.conf):
        known = ClaimSet(paths, load_claims(paths.experiments))
        (better,) = [each for each in known.claims[0].predictions if each.name == "better"]
        assert unmet(known, known.claims[0], better) == "model.n_head must be 2, but is 4"
    assert sum(task.kind == "run" for task in plan.tasks.values()) == 3  # of `kept`


def test_rows_that_exist_are_not_run_again_and_failed_ones_are_not_kept(paths):
    plan = planned(paths)
    *_, first, second = plan.tasks
    store = RowStore(paths, ["mine"])
    store.add(finished(first), {"mine": True})
    store.add(finished(second) | {"status": "failed"}, {"mine": True})
    again = planned(paths, store=RowStore(paths, ["mine"]))
    assert again.tasks[first].done and not again.tasks[second].done
    assert planned(paths, store=store).tasks[second].done  # once is enough for one call


def test_declared_rows_are_committed_and_exploratory_ones_are_not(paths):
    store = RowStore(paths, ["mine"])
    store.add(finished("a"), {"mine": True})
    store.add(finished("b"), {"mine": False})
    assert '"a"' in own_claim.file(paths, "rows.jsonl").read_text()
    assert '"b"' in paths.own_rows("mine").read_text()
    assert set(RowStore(paths, ["mine"]).rows) == {("mine", "a"), ("mine", "b")}
    fresh = RowStore(paths, ["mine"], fresh=True)
    assert set(fresh.rows) == {("mine", "b")}
    fresh.add(finished("c"), {"mine": True})
    assert '"c"' in paths.own_rows("mine").read_text()


def test_a_row_belongs_to_the_declared_test_if_one_prediction_declared_its_seed(paths):
    file = own_claim.file(paths, "claim.py")
    file.write_text(file.read_text().replace("seeds=2", "seeds=3", 1))  # of `better`, not `kept`
    with hydra_conf(paths.conf):
        claims = load_claims(paths.experiments)
        declare(claims[0], ConfigResolver(paths), {})
    tasks = {task.label: task for task in planned(paths).tasks.values()}
    assert tasks["mine: flipped, seed 2"].claims == {"mine": True}
    assert planned(paths, count=4).tasks[tasks["mine: flipped, seed 2"].id].claims["mine"]


def test_rows_of_exploratory_runs_stay_exploratory_and_fresh_ones_apart(paths):
    with hydra_conf(paths.conf):
        claims = load_claims(paths.experiments)
        declare(claims[0], ConfigResolver(paths), {})

        def judged(declared, *, fresh):
            known = ClaimSet(paths, claims, fresh=fresh)
            plan = make_plan(known, {("mine", "noise"): 10})
            for task in plan.tasks.values():
                known.store.add(finished(task.id) | {"values": {"x": 1.0}}, {"mine": declared})
            return evaluate(ClaimSet(paths, claims), {})[0]

        assert judged(True, fresh=True).found["noise"].seeds == []
        paths.own_rows("mine").unlink()
        evidence = judged(False, fresh=False)
    assert evidence.found["noise"].verdict == "confirmed"
    assert f"{paths.own_rows('mine')} has rows of exploratory runs" in evidence.exploratory


def test_a_metric_is_read_from_a_run_that_a_callback_stopped_and_not_from_a_diverged_one(
    paths, tmp_path, monkeypatch
):
    from attnlab.training import run

    metrics = {"corpus": {"name": "plays"}, "wall_seconds": 1.0, "git": None, "versions": {}}
    metrics |= {"precision": "32-true", "device": "cpu"}
    (tmp_path / "checkpoints").mkdir()
    overrides = ("experiment=mine", "attn=flipped")
    for status, values in (("stopped", {"checkpoints": 0}), ("diverged", {})):
        ended = SimpleNamespace(metrics=metrics | {"status": status})
        monkeypatch.setattr(run, "run", lambda *_, ended=ended, **__: ended)
        task = ClaimTask(
            "id", "run", "mine", 0, 1.0, overrides, str(tmp_path), claims={"mine": True}
        )
        task.metrics = {"of the run": ("mine", "kept")}
        _, row = execute_task(task, paths)
        assert (row["status"], row["values"]) == (status, values)


def test_a_damaged_run_is_rerun_by_deleting_it_because_reproduce_has_no_force(
    paths, tmp_path, monkeypatch
):
    from attnlab.training import run

    def refuse(*_, **__):
        raise BadInput(f"metrics.json is damaged; {RERUN}")

    monkeypatch.setattr(run, "run", refuse)
    overrides = ("experiment=mine", "attn=flipped")
    directory = str(tmp_path / "seed=0")
    task = ClaimTask("id", "run", "mine", 0, 1.0, overrides, directory, claims={"mine": True})
    (row,) = execute_task(task, paths)
    assert row["status"] == "failed"
    assert row["reason"] == f"metrics.json is damaged; delete {tmp_path}/seed=0 to rerun"


def test_a_run_that_only_another_claim_has_is_done_again(paths):
    """It may have been made before this claim was declared."""
    plan = planned(paths)
    run = next(iter(plan.tasks))
    store = RowStore(paths, ["mine", "other"])
    store.add(finished(run), {"other": True})
    assert not planned(paths, store=store).tasks[run].done
    store.add(finished(run), {"other": True, "mine": True})
    assert planned(paths, store=store).tasks[run].done
    assert (paths.experiments / "other" / "rows.jsonl").read_text().count(run) == 1


def test_a_row_that_a_kill_cut_off_is_measured_again_and_other_damage_is_named(paths):
    store = RowStore(paths, ["mine"])
    store.add(finished("a"), {"mine": True})
    with own_claim.file(paths, "rows.jsonl").open("a") as file:
        file.write('{"id": "b", "stat')
    again = RowStore(paths, ["mine"])
    assert set(again.rows) == {("mine", "a")}
    again.add(finished("b"), {"mine": True})
    assert own_claim.file(paths, "rows.jsonl").read_text().count("\n") == 2
    assert set(RowStore(paths, ["mine"]).rows) == {("mine", "a"), ("mine", "b")}
    for damaged in (b'{"id": \n{"id": "a"}\n', b'{"id": "\xff"}\n{"id": "a"}\n'):
        own_claim.file(paths, "rows.jsonl").write_bytes(damaged)
        with pytest.raises(BadInput, match="line 1"):
            RowStore(paths, ["mine"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("CLAIM = 3", "must define CLAIM"),
        ("import nothing_of_that_name", "cannot be loaded"),
        ("from attnlab.claims import *\nCLAIM = Claim('x', ())", "at least one primary"),
        (
            "from attnlab.claims import *\n"
            "CLAIM = Claim('x', (Measured('a', 's', AtLeast(0)),), last_look=15)",
            "last_look = 15",
        ),
    ],
)
def test_an_unsound_claim_is_one_sentence(paths, text, sentence):
    own_claim.file(paths, "claim.py").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        load_claims(paths.experiments)


def test_an_unknown_name_is_answered_with_the_nearest(paths):
    with pytest.raises(BadInput, match="did you mean mine"):
        load_claims(paths.experiments, ["mime"])


def test_durations():
    assert (duration(42), duration(300), duration(7200)) == ("42 s", "5 min", "2.0 h")
