"""What is planned: cells once, preconditions, declarations kept from before the first run."""

import json

import pytest

from attnlab.claims.claim import declared_hash
from attnlab.claims.collect import declare
from attnlab.claims.discover import code_digest, discover, load
from attnlab.claims.paths import Places
from attnlab.claims.plan import make_plan
from attnlab.claims.reproduce import duration
from attnlab.claims.resolve import cell_of, config_of, hydra_conf
from attnlab.errors import BadInput
from attnlab.files import write_json
from tests.claims import own_claim
from tests.conftest import CONF


@pytest.fixture
def places(tmp_path):
    own_claim.write(tmp_path)
    return Places(tmp_path / "experiments", tmp_path / "conf", tmp_path / "out", "quick")


def planned(places, **more):
    with hydra_conf(places.conf):
        return make_plan(discover(places.experiments), places, **more)


def test_equal_cells_are_run_once(places):
    plan = planned(places)
    kinds = [task.message["kind"] for task in plan.tasks.values()]
    assert kinds.count("run") == 6  # two arms, three seeds; `kept` uses the same runs
    assert kinds.count("measure") == 3
    assert sum(len(task.readings) for task in plan.tasks.values()) == 3
    assert len(plan.todo) == 9


def test_seeds_can_be_set_for_all(places):
    assert len(planned(places, seeds=1).tasks) == 3


def test_the_same_configuration_has_the_same_digest_however_it_is_written():
    with hydra_conf(CONF):
        plain = cell_of(("preset=micro",))
        spelled = cell_of(("preset=micro", "attn=sdpa", "optim.lr=3e-3"))
        other = cell_of(("preset=micro", "optim.lr=4e-3"))
    assert plain.digest == spelled.digest != other.digest
    assert plain.variant == "sdpa"


def test_a_seed_and_a_name_are_not_an_arm_s_to_set():
    with hydra_conf(CONF), pytest.raises(BadInput, match="seed=3"):
        cell_of(("seed=3",))


def test_overrides_that_do_not_compose_are_named():
    with hydra_conf(CONF), pytest.raises(BadInput, match="attn=unscald"):
        config_of(("attn=unscald",), seed=0)


def test_folders_are_readable_and_never_shared(tmp_path):
    with hydra_conf(CONF):
        first = cell_of(("attn=unscaled", "optim.lr=0.01"))
        second = cell_of(("attn=unscaled", "optim.lr=0.01", "model.bias=true"))
    folder = first.folder(2, tmp_path / "runs")
    assert folder.name == "seed=2"
    assert folder.parent.name == f"attn=unscaled,optim.lr=0.01~{first.digest[:8]}"
    assert folder.parent != second.folder(2, tmp_path / "runs").parent


def test_a_precondition_that_does_not_hold_is_said_and_nothing_is_run(places):
    sweep = places.conf / "experiment" / "mine.yaml"
    sweep.write_text(sweep.read_text().replace("n_head: 2", "n_head: 4"))
    plan = planned(places)
    assert plan.unmet == {("mine", "better"): "model.n_head = 2 is asked for, it is 4"}
    assert sum(task.message["kind"] == "run" for task in plan.tasks.values()) == 3  # of `kept`


def test_cells_are_kept_until_the_configuration_changes(places):
    plan = planned(places)
    file = places.root / "cells.json"
    before = file.read_text()
    assert planned(places).tasks.keys() == plan.tasks.keys()
    assert file.read_text() == before
    sweep = places.conf / "experiment" / "mine.yaml"
    sweep.write_text(sweep.read_text().replace("n_embd: 16", "n_embd: 32"))
    assert not {t for t in planned(places).tasks if t.startswith("run")} & plan.tasks.keys()
    file.write_text('{"conf": ')
    assert len(planned(places).tasks) == 9


def test_done_and_failed_rows(places):
    plan = planned(places)
    first, second = list(plan.tasks)[-2:]
    write_json(places.row(first), {"status": "finished", "values": {}, "times": {"seconds": 1.0}})
    write_json(places.row(second), {"status": "failed", "reason": "x", "times": {}})
    again = planned(places)
    assert again.tasks[first].done
    assert not again.tasks[second].done


def test_a_damaged_row_is_measured_again(places):
    plan = planned(places)
    id_ = list(plan.tasks)[-1]
    places.row(id_).parent.mkdir(parents=True)
    places.row(id_).write_text('{"status": "fin')
    assert not planned(places).tasks[id_].done


def test_the_declaration_of_before_the_first_run_stays(places):
    claim, plan = load(places.claim_file("mine")), planned(places)
    declare(claim, plan, places)
    kept = json.loads(places.declared("mine").read_text())
    assert kept["hash"] == declared_hash(claim)
    # Nothing was run: a new threshold may still be declared.
    own_claim.write(places.experiments.parent, threshold=6.0)
    claim, plan = load(places.claim_file("mine")), planned(places)
    declare(claim, plan, places)
    assert json.loads(places.declared("mine").read_text())["hash"] == declared_hash(claim)
    # Something was run: it may not.
    write_json(places.row(next(iter(plan.tasks))), {"status": "finished", "times": {"seconds": 1}})
    own_claim.write(places.experiments.parent, threshold=7.0)
    changed = load(places.claim_file("mine"))
    declare(changed, planned(places), places)
    assert json.loads(places.declared("mine").read_text())["hash"] == declared_hash(claim)
    assert declared_hash(changed) != declared_hash(claim)


def test_the_hash_sees_thresholds_and_metrics_but_no_comments(places):
    file = places.claim_file("mine")
    before = declared_hash(load(file))
    text = file.read_text()
    file.write_text(text.replace("def noise(seed, budget):", "def noise(seed, budget):  # why"))
    assert declared_hash(load(file)) == before
    file.write_text(text.replace("seed / 10", "seed / 11"))
    assert declared_hash(load(file)) != before


def test_stored_measurements_depend_on_what_they_use_and_on_nothing_else(tmp_path):
    file = tmp_path / "claim.py"
    text = "import math\nA = 1\ndef use():\n    return A\ndef m(s):\n    return use()\nB = 2\n"
    file.write_text(text)
    before = code_digest(file, "m")
    for old, new, same in (
        ("B = 2", "B = 3\ndef figure(e):\n    return B", True),
        ("return A", "return A  # why", True),
        ("A = 1", "A = 2", False),
        ("return A", "return A + 1", False),
    ):
        file.write_text(text.replace(old, new))
        assert (code_digest(file, "m") == before) is same, new


def test_a_claim_may_keep_its_theory_in_a_file_beside(places):
    file = places.claim_file("mine")
    text = file.read_text().replace("def noise(seed", "def unused(seed")
    file.write_text(
        text.replace("\n\n\ndef unused", "\nfrom .theory import noise\n\n\ndef unused")
    )
    beside = file.with_name("theory.py")
    beside.write_text('def noise(seed, budget):\n    return {"x": 1.0}\n')
    assert load(file).part("noise").measure(0, "quick") == {"x": 1.0}
    before = code_digest(file, "noise")
    beside.write_text('def noise(seed, budget):\n    return {"x": 22.5}\n')
    assert load(file).part("noise").measure(0, "quick") == {"x": 22.5}
    assert code_digest(file, "noise") != before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("CLAIM = 3", "must define CLAIM"),
        ("import nothing_of_that_name", "cannot be loaded"),
        ("from attnlab.claims import *\nCLAIM = Claim('x', ())", "at least one part"),
    ],
)
def test_an_unsound_claim_is_one_sentence(places, text, sentence):
    places.claim_file("mine").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        discover(places.experiments)


def test_an_unknown_name_is_answered_with_the_nearest(places):
    with pytest.raises(BadInput, match="did you mean mine"):
        discover(places.experiments, ["mime"])


def test_durations():
    assert (duration(42), duration(300), duration(7200)) == ("42 s", "5 min", "2.0 h")
