"""Declarations detect every later change that can affect a verdict."""

import json
import math
import subprocess
from functools import lru_cache

import pytest
from rich.console import Console

from attnlab.claims import reference
from attnlab.claims.code_digest import file_digest, function_digest
from attnlab.claims.configs import ConfigResolver, hydra_conf
from attnlab.claims.declare import check_committed, declare, read_declared
from attnlab.claims.loading import load_claim
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimSet, make_plan
from attnlab.claims.provenance import _top, machine, repository_state
from attnlab.claims.reference import changed_values
from attnlab.claims.rows import read_rows, sealed
from attnlab.errors import BadInput
from attnlab.files import read_json, write_json
from tests.claims import own_claim

VALUES = {"arm flipped": 4.0, "arm causal": 4.1, "measurement noise": 101.0}
REFERENCE = {"seed": 1000, "values": VALUES, **machine()}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder for all tests: its configuration is composed once, and kept in `out`."""
    return tmp_path_factory.mktemp("project")


@pytest.fixture
def paths(project):
    """The original claim, without a declaration."""
    own_claim.write(project, threshold=7.5)
    found = Paths(project / "experiments", project / "conf", project / "out", "quick")
    for file in (own_claim.file(found, "declared.json"), own_claim.file(found, "verdict.json")):
        file.unlink(missing_ok=True)
    return found


@lru_cache
def resolver(paths, sweep):
    """What composes the arms; each once while the sweep's file has this text."""
    return ConfigResolver(paths)


def declared(paths, reference=None):
    """Declare the current claim, or read its declaration without reference values."""
    with hydra_conf(paths.conf):
        claim = load_claim(own_claim.file(paths, "claim.py"))
        resolve = resolver(paths, (paths.conf / "experiment" / "mine.yaml").read_text())
        if reference is None:
            return read_declared(claim, resolve)
        return declare(claim, resolve, reference)


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_nothing_is_declared_implicitly(paths):
    assert declared(paths).version == 0
    assert "nothing was declared" in declared(paths).exploratory


def test_an_unchanged_claim_keeps_its_version(paths):
    assert declared(paths, REFERENCE).version == 1
    assert declared(paths).exploratory == ""
    assert declared(paths, REFERENCE).version == 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("return 0.0", "return 1.0", "code.claim.py"),  # a helper that the contrast calls
        ("AtMost(7.5)", "AtMost(6.0)", "threshold"),
        ("last_look=20", "last_look=10", "looks"),
        ("last_look=20", "last_look=20, first_seed=5", "first_seed"),
        (
            'role="secondary", seeds=2',
            'role="secondary", seeds=3',
            "prediction better: seeds: 2 -> 3",
        ),
        ("seed / 10", "seed / 11", "code.claim.py"),
        ("iterdir()", "glob('*.ckpt')", "code.claim.py"),  # reads a metric from the run directory
        ('("attn=sdpa",)', '("attn=manual",)', "arm causal: attn.kernel: sdpa -> manual"),
        ("x is small.", "x is large.", "says"),
    ],
)
def test_a_changed_claim_is_detected(paths, old, new, told):
    declared(paths, REFERENCE)
    edit(own_claim.file(paths, "claim.py"), old, new)
    assert told in declared(paths).exploratory


def test_a_change_in_a_file_beside_the_claim_is_detected(paths):
    beside = own_claim.file(paths, "theory.py")
    beside.write_text("def most():\n    return 10\n")
    declared(paths, REFERENCE)
    edit(beside, "return 10", "return 11")
    assert "code.theory.py" in declared(paths).exploratory
    edit(beside, "return 11", "return 10")
    assert declared(paths).exploratory == ""
    beside.unlink()


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("return 1", "return 1  # why", True),
        ("return 1", '"""Why."""\n    return 1', True),
        ("from a import b", "from moved.a import b", True),
        ("from a import b", "from a import c as b", False),
        ("return 1", "return 2", False),
        ("no_grad", "inference_mode", False),
    ],
)
def test_a_digest_covers_code_and_not_comments_or_places_of_imports(tmp_path, old, new, same):
    file = tmp_path / "claim.py"
    text = "from a import b\n@torch.no_grad()\ndef m(s):\n    return 1\n"
    file.write_text(text)
    before = file_digest(file)
    file.write_text(text.replace(old, new))
    assert (file_digest(file) == before) is same


def test_a_threshold_is_no_part_of_the_code_of_a_measurement(paths):
    def digest():
        claim = load_claim(own_claim.file(paths, "claim.py"))
        return function_digest(claim.prediction("noise").measure)

    before = digest()
    edit(own_claim.file(paths, "claim.py"), "AtMost(7.5)", "AtMost(6.0)")
    assert digest() == before  # so that its pilots are still valid
    edit(own_claim.file(paths, "claim.py"), "seed / 10", "seed / 11")
    assert digest() != before


def test_a_changed_number_of_steps_in_conf_is_detected(paths):
    declared(paths, REFERENCE)
    edit(paths.conf / "experiment" / "mine.yaml", "max_steps: 10", "max_steps: 12")
    changed = declared(paths).changed
    assert "arm flipped: trainer.max_steps: 10 -> 12" in changed


def test_comments_figures_and_new_default_settings_do_not_count(paths):
    first = declared(paths, REFERENCE)
    own_claim.file(paths, "figure.py").write_text("def figure(e):\n    return 3\n")
    edit(own_claim.file(paths, "claim.py"), "return 0.0", "return 0.0  # nothing")
    content = read_json(own_claim.file(paths, "declared.json"))
    del content["declaration"]["settings"]["model.dropout"]  # newer than the declaration
    write_json(own_claim.file(paths, "declared.json"), content)
    now = declared(paths)
    assert now.exploratory == "" and now.arm_digests == first.arm_digests
    edit(paths.conf / "experiment" / "mine.yaml", "n_layer: 1,", "n_layer: 1, dropout: 0.1,")
    assert "model.dropout: 0.0 -> 0.1" in declared(paths).exploratory


def test_undeclared_seeds_do_not_count(paths):
    declared(paths, REFERENCE)
    claim, mine = load_claim(own_claim.file(paths, "claim.py")), declared(paths)
    prediction = claim.prediction("noise")
    assert [mine.covers(claim, prediction, seed) for seed in (0, 19, 20)] == [True, True, False]
    edit(own_claim.file(paths, "claim.py"), "AtMost(7.5)", "AtMost(7.0)")
    assert not declared(paths).covers(claim, prediction, 0)


def test_settings_without_effect_on_the_run_do_not_count(paths):
    declared(paths, REFERENCE)
    edit(paths.conf / "experiment" / "mine.yaml", "checkpoint_every: 10", "checkpoint_every: 5")
    assert declared(paths).exploratory == ""


@pytest.mark.parametrize(
    ("value", "same_machine", "changed"),
    [(4.1 + 1e-6, True, False), (4.11, True, True), (4.11, False, False), (4.2, False, True)],
)
def test_reference_values_repeat_more_closely_on_the_same_machine(
    paths, value, same_machine, changed
):
    reference = REFERENCE if same_machine else REFERENCE | {"processor": "another one"}
    mine = declared(paths, reference)
    assert bool(changed_values(mine, {"arm causal": value})) is changed


@pytest.mark.parametrize(("then", "now"), [(math.inf, 4.1), (4.1, math.inf), (math.nan, 4.1)])
def test_a_reference_run_that_only_then_or_only_now_diverged_has_changed(paths, then, now):
    values = {**REFERENCE["values"], "arm causal": then}
    mine = declared(paths, REFERENCE | {"values": values})
    assert changed_values(mine, {"arm causal": then}) == []
    assert len(changed_values(mine, {"arm causal": now})) == 1


def test_a_reference_names_the_machines_of_its_pilots_and_not_that_of_the_declaration():
    rows = {
        name: {
            "status": "finished",
            "values": {"val_loss": 2.0},
            "processor": name,
            "versions": {},
        }
        for name in ("P", "Q")
    }
    places = {"arm one": ("P", "val_loss"), "arm two": ("P", "val_loss")}
    assert reference.read_reference(places, rows, 1000)["processor"] == "P"
    mixed = reference.read_reference(places | {"arm three": ("Q", "val_loss")}, rows, 1000)
    assert (mixed["processor"], mixed["versions"]) == (["P", "Q"], {})


@pytest.mark.parametrize(("prediction", "noticed"), [("kept", ""), ("better", "causal: 4.1")])
def test_only_what_is_about_to_be_run_is_compared(paths, monkeypatch, prediction, noticed):
    declared(paths, REFERENCE)

    def execute(tasks, *_):
        for task in tasks:
            yield task, [{"status": "finished", "values": {"val_loss": 4.0}, "label": ""}]

    monkeypatch.setattr(reference, "execute", execute)
    with hydra_conf(paths.conf):
        known = ClaimSet(paths, [load_claim(own_claim.file(paths, "claim.py"))])
        plan = make_plan(known, {("mine", prediction): 2})
        reference.pin_training_code(plan, known, 1, Console())
    assert noticed in known.declared["mine"].exploratory
    assert bool(known.declared["mine"].exploratory) == bool(noticed)


def test_versions_keep_the_old_verdicts(paths):
    declared(paths, REFERENCE)
    write_json(own_claim.file(paths, "verdict.json"), {"version": 1, "verdict": "does not hold"})
    edit(own_claim.file(paths, "claim.py"), "AtMost(7.5)", "AtMost(6.0)")
    assert declared(paths, REFERENCE).version == 2
    edit(own_claim.file(paths, "claim.py"), "AtMost(6.0)", "AtMost(7.0)")
    content = declared(paths, REFERENCE).content
    assert content["version"] == 3
    assert [old["verdict"] for old in content["history"]] == ["does not hold", "not published"]
    assert "prediction noise: criterion.threshold: 6.0 -> 7.0" in content["changed"]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"version": 1}',
        '{"version": 1, "declaration": []}',
        '{"version": 1, "declaration": {"arms": {"flipped": {}}, "settings": {}}}',
    ],
)
def test_a_damaged_declaration_is_named(paths, content):
    own_claim.file(paths, "declared.json").write_text(content)
    with pytest.raises(BadInput, match=r"declared\.json is damaged"):
        declared(paths)


def test_a_new_version_keeps_the_old_rows_and_needs_new_seeds(paths):
    declared(paths, REFERENCE)
    rows = own_claim.file(paths, "rows.jsonl")
    rows.write_text(json.dumps(sealed({"id": "a", "seed": 3, "values": {}})) + "\n")
    edit(own_claim.file(paths, "claim.py"), "AtMost(7.5)", "AtMost(6.0)")
    with pytest.raises(BadInput, match=r"seed 3 again, which has rows in .*rows\.jsonl"):
        declared(paths, REFERENCE)
    edit(own_claim.file(paths, "claim.py"), "last_look=20", "last_look=20, first_seed=20")
    content = declared(paths, REFERENCE).content
    assert content["history"][0]["seeds"] == [3]
    old = own_claim.file(paths, "rows-v1.jsonl")
    assert not rows.exists() and read_rows(old)[0]["id"] == "a"
    old.unlink()


def git(directory, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(directory):
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "x")
    return git(directory, "rev-parse", "HEAD")


def test_rows_need_a_clean_commit_that_contains_the_declaration(tmp_path):
    project = own_claim.write(tmp_path)
    paths = Paths(project / "experiments", project / "conf", project / "out", "quick")
    git(project, "init", "-q")
    before = commit(project)
    declared(paths, REFERENCE)
    file = own_claim.file(paths, "declared.json")
    after = commit(project)

    def rows(*commits, dirty=False):
        return [{"label": "x", "git": {"commit": each, "dirty": dirty}} for each in commits]

    check_committed(file, rows(after))
    with pytest.raises(BadInput, match="commit the declaration first"):
        check_committed(file, rows(after, before))
    with pytest.raises(BadInput, match="with uncommitted changes"):
        check_committed(file, rows(after, dirty=True))
    with pytest.raises(BadInput, match="outside a git repository"):
        check_committed(file, rows(None))
    content = json.loads(file.read_text())
    content["declaration"]["first_seed"] = 7
    write_json(file, content)
    with pytest.raises(BadInput, match=after[:12]):
        check_committed(file, rows(after))


def test_the_state_of_a_user_s_own_repository_ignores_rows_and_outputs(tmp_path):
    project = own_claim.write(tmp_path)
    paths = Paths(project / "experiments", project / "conf", project / "out", "quick")
    assert repository_state(paths)["commit"] is None
    git(project, "init", "-q")
    made = commit(project)
    _top.cache_clear()
    for file in ("rows.jsonl", "pilots.jsonl"):
        own_claim.file(paths, file).write_text("{}\n")
    (project / "out").mkdir()
    (project / "out" / "x").write_text("x")
    assert repository_state(paths) == {"commit": made, "dirty": False}
    own_claim.file(paths, "theory.py").write_text("x = 1\n")
    assert repository_state(paths) == {"commit": made, "dirty": True}
