"""The command `attnlab reproduce` on a user's claim: listed, run, and evaluated."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from attnlab import workers
from attnlab.attention import kernels
from attnlab.claims.provenance import _top
from attnlab.claims.reproduce import print_agreement
from attnlab.claims.rows import read_rows, sealed
from attnlab.training import optimizers
from tests import command_line as commands
from tests.claims import own_claim
from tests.forked import forked_worker, import_once

SCHEDULE, MANUAL = optimizers.schedule, kernels.manual


def attnlab(folder, *arguments):
    """`attnlab reproduce` in this process, run in a project folder."""
    return commands.attnlab("reproduce", *arguments, folder=folder)


def real_attnlab(folder, *arguments):
    """`attnlab reproduce` in a process of its own."""
    command = [sys.executable, "-m", "attnlab", "reproduce", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def forked_workers():
    """Workers that are forked, so that they import nothing anew."""

    import_once()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "make_worker", forked_worker)
        yield


def verdicts(folder):
    file = folder / "outputs" / "reproduce" / "quick" / "verdicts.json"
    return json.loads(file.read_text())["claims"]["mine"]


@pytest.fixture(scope="module")
def done(tmp_path_factory, forked_workers):
    """A claim in a repository of its own that is listed, declared, committed and run."""
    folder = own_claim.write(tmp_path_factory.mktemp("project"))
    (folder / "README.md").write_text("<!-- verdicts --><!-- /verdicts -->\n")
    listed, declared = attnlab(folder, "--list"), attnlab(folder, "mine", "--declare")
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    for words in ("init -q", "add experiments conf README.md", "commit -qm x"):
        subprocess.run(["git", "-C", folder, *identity, *words.split()], check=True)
    _top.cache_clear()  # forked workers inherit it
    return folder, listed, declared, attnlab(folder, "mine", "--jobs", "2")


def test_a_claim_of_a_user_s_own_is_listed_declared_run_and_judged(done):
    folder, listed, declared, first = done
    assert "mine" in listed.out and "(later)" in listed.out
    assert "mine: version 1 is declared" in declared.out, declared.error
    assert first.code == 0, first
    said = "1 claim, 4 runs and 10 measurements for the first look, 0 of them done"
    assert said in first.out
    claim = verdicts(folder)
    assert (claim["verdict"], claim["version"], claim["exploratory"]) == ("holds", 1, "")
    predictions = claim["predictions"]
    assert (predictions["noise"]["n"], predictions["noise"]["yes"]) == (10, 10)
    assert len(predictions["better"]["scores"]["causal"]) == 2
    assert predictions["kept"]["values"] == [2.0] * 2
    assert len((folder / "experiments/mine/rows.jsonl").read_text().splitlines()) == 16


def test_a_second_call_runs_nothing_and_gives_the_same_verdicts(done):
    folder = done[0]
    before = verdicts(folder)
    again = attnlab(folder)
    assert "nothing to run" in again.out
    assert "[1/" not in again.out
    assert verdicts(folder) == before


def test_a_clone_resumes_from_the_committed_rows(done, tmp_path):
    shutil.copytree(done[0], tmp_path / "clone", ignore=shutil.ignore_patterns("outputs"))
    assert "nothing to run" in attnlab(tmp_path / "clone").out
    assert verdicts(tmp_path / "clone")["verdict"] == "holds"
    planned = attnlab(tmp_path / "clone", "--plan", "--fresh").out
    assert "0 of them done" in planned and "last look" in planned


@pytest.mark.long
def test_a_finished_run_with_a_damaged_checkpoint_is_not_judged(done, tmp_path, forked_workers):
    shutil.copytree(done[0], tmp_path / "copy")
    (tmp_path / "copy" / "experiments" / "mine" / "rows.jsonl").unlink()
    runs = tmp_path / "copy" / "outputs" / "reproduce" / "runs"
    file = sorted(runs.glob("*/seed=0/checkpoints/last.ckpt"))[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    again = attnlab(tmp_path / "copy", "mine", "--jobs", "2")
    assert again.code == 1 and f"{file} is not a checkpoint of attnlab" in again.out, again
    assert f"delete {file.parents[1]} to rerun" in again.out  # reproduce has no force=true
    file.write_bytes(whole)
    assert attnlab(tmp_path / "copy", "mine").code == 0
    assert verdicts(tmp_path / "copy") == verdicts(done[0])


def test_a_plan_writes_nothing(tmp_path):
    folder = own_claim.write(tmp_path)
    rows = folder / "experiments" / "mine" / "rows.jsonl"
    rows.write_text('{"id": "of a killed ru')
    before = sorted(folder.rglob("*"))
    assert attnlab(folder, "--plan").code == 0
    assert sorted(folder.rglob("*")) == before
    assert rows.read_text() == '{"id": "of a killed ru'


def test_a_threshold_changed_after_the_declaration_is_exploratory(done):
    folder = done[0]
    own_claim.write(folder, threshold=-5.0)
    again = attnlab(folder)
    claim = verdicts(folder)
    assert "threshold: 5.0 -> -5.0" in claim["exploratory"]
    assert claim["verdict"] == "does not hold"
    assert again.code == 0  # refuted is a valid verdict
    assert attnlab(folder, "--publish").code == 2
    own_claim.write(folder)


def schedule_without_decay(optimizer, max_steps, warmup_steps, floor, decay):
    return SCHEDULE(optimizer, max_steps, warmup_steps, 1.0, decay)


def larger_by_a_fifth(*args, **kwargs):
    return 1.2 * MANUAL(*args, **kwargs)


@pytest.mark.parametrize(
    ("module", "name", "fault", "noticed"),
    [
        (optimizers, "schedule", schedule_without_decay, "reference value of arm causal"),
        (
            kernels,
            "manual",
            larger_by_a_fifth,
            "reference value of measurement noise: 101 -> 101.2",
        ),
    ],
)
def test_training_and_kernels_that_changed_after_the_declaration_are_noticed(
    done, tmp_path, monkeypatch, module, name, fault, noticed
):
    shutil.copytree(done[0], tmp_path / "copy", ignore=shutil.ignore_patterns("outputs", "rows*"))
    monkeypatch.setattr(module, name, fault)
    again = attnlab(tmp_path / "copy", "mine", "--seeds", "1", "--jobs", "2")
    assert again.code == 0, again.error
    assert noticed in verdicts(tmp_path / "copy")["exploratory"]
    assert not (tmp_path / "copy" / "experiments" / "mine" / "rows.jsonl").exists()


def test_a_claim_is_published_from_the_user_s_own_repository(done):
    folder = done[0]
    published = attnlab(folder, "--publish")
    assert published.code == 0, published.error
    own = folder / "experiments" / "mine"
    commit = subprocess.run(
        ["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    rows = read_rows(own / "rows.jsonl")
    assert {row["git"]["commit"] for row in rows} == {commit}
    assert not any(row["git"]["dirty"] for row in rows)
    assert all(row["processor"] and row["sources"] and row["time"] for row in rows)
    assert json.loads((own / "verdict.json").read_text())["rows"].keys() == {r["id"] for r in rows}
    assert commit[:12] in (own / "README.md").read_text()


def test_the_same_rows_that_are_judged_otherwise_are_exploratory(done, monkeypatch):
    """The rule is part of the declaration, but not all code that leads to a verdict."""
    folder = done[0]
    assert attnlab(folder, "--publish").code == 0
    assert not verdicts(folder)["exploratory"]
    monkeypatch.setattr("attnlab.claims.evaluate.number_of", lambda row, key: 1.125)
    assert attnlab(folder).code == 0
    why = verdicts(folder)["exploratory"]
    assert why.startswith("noise is 1.125 at a seed by today's code, and ")
    monkeypatch.setattr("attnlab.claims.evaluate.number_of", lambda row, key: 99.0)
    refused = attnlab(folder, "--publish")
    assert refused.code == 2
    assert "the claim is does not hold by today's code, and holds in verdict.json" in refused.error


@pytest.mark.long
def test_failed_tasks_are_named_and_the_others_are_kept(tmp_path, forked_workers):
    folder = own_claim.write(tmp_path)
    claim = folder / "experiments" / "mine" / "claim.py"
    fatal = """def noise(seed):
    import os
    if seed == 0:
        os.kill(os.getpid(), 9)
    if seed == 1:
        raise OSError("no such luck")
"""
    claim.write_text(claim.read_text().replace("def noise(seed):\n", fatal))
    call = attnlab(folder, "--jobs", "2", "--seeds", "3")
    assert call.code == 1
    assert "mine was not judged: noise: 2 failed" in call.out
    predictions = verdicts(folder)["predictions"]
    reasons = " ".join(failed["reason"] for failed in predictions["noise"]["failed"])
    assert "its process died" in reasons and "no such luck" in reasons
    assert len(predictions["better"]["values"]) == 2
    # The next call repeats only the failed tasks.
    again = attnlab(folder, "--jobs", "1", "--seeds", "3")
    assert "4 runs and 3 measurements for the first look, 5 of them done" in again.out


def test_the_agreement_with_published_losses_counts_diverged_runs(tmp_path):
    def rows(*losses):
        ends = ["finished" if loss else "diverged" for loss in losses]
        return [
            sealed({"id": str(n), "status": end, "values": {"val_loss": loss}, "label": ""})
            for n, (loss, end) in enumerate(zip(losses, ends, strict=True))
        ]

    file = tmp_path / "mine" / "rows.jsonl"
    file.parent.mkdir()
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows(2.0, 2.1, None, None)))
    here = {row["id"]: row for row in rows(2.0, 2.2, None, 2.0)}
    known = SimpleNamespace(
        claims=[SimpleNamespace(name="mine")],
        paths=SimpleNamespace(experiments=tmp_path),
        store=SimpleNamespace(committed=lambda name: here),
    )
    console = Console(file=io.StringIO(), width=200)
    print_agreement(known, console)
    assert console.file.getvalue() == (
        "mine: 3 losses of this machine agree with the published ones to 1e-01 nats; 1 more "
        "diverged on one machine only\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--budget", "huge"], "--budget huge"),
        (["--seeds", "0"], "--seeds 0"),
        (["--minutes", "0"], "--minutes 0.0 must be positive"),
        (["--select", "--jobs", "0"], "--jobs 0 must be positive"),
        (["mime"], "did you mean mine"),
        (["--experiments", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(own_claim.write(tmp_path))
    ended = commands.attnlab("reproduce", *arguments)
    assert ended.code == 2
    assert sentence in ended.error
    assert ended.error.count("\n") == 1
    assert not (tmp_path / "outputs" / "reproduce" / "huge").exists()


@pytest.mark.long
def test_killed_at_five_moments_it_ends_with_the_same_verdicts(tmp_path):
    quiet, killed = (own_claim.write(tmp_path / name, steps=150) for name in ("quiet", "killed"))
    assert real_attnlab(quiet, "--jobs", "2", "--seeds", "4").returncode == 0
    command = [sys.executable, "-m", "attnlab", "reproduce", "--jobs", "2", "--seeds", "4"]
    for wait in (4, 9, 13, 15, 18):
        process = subprocess.Popen(
            command, cwd=killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(wait)
        children = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 60  # one that is still importing ends when it has done so
        while any(alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not [pid for pid in children if alive(pid)]  # they end with their parent
    assert real_attnlab(killed, "--jobs", "2", "--seeds", "4").returncode == 0
    assert verdicts(killed) == verdicts(quiet)


def children_of(pid):
    with contextlib.suppress(subprocess.CalledProcessError):
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True
        )
        return [int(line) for line in listed.stdout.split()]
    return []


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
