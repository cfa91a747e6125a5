"""`attnlab rank` from the command line, with tiny models."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from torch import nn

from attnlab import GPT
from attnlab.attention import DeltaAttention, SelfAttention
from attnlab.claims.configs import ConfigResolver, hydra_conf
from attnlab.claims.execute import execute_task
from attnlab.claims.provenance import sources_digest
from attnlab.claims.reproduce import find_paths
from attnlab.claims.rows import read_rows, sealed
from attnlab.errors import BadInput
from attnlab.files import write_json
from attnlab.ranking.own_contestant import code_of, has_convolution, own_contestant
from attnlab.ranking.protocol import parse
from attnlab.ranking.rank import Ranking, further_values, rank
from attnlab.ranking.trials import Course
from tests.command_line import attnlab
from tests.conftest import CONF
from tests.ranking.simulated import PROTOCOL, protocol, run

TINY = {
    **PROTOCOL,
    "common": ["probes=curve", "probes.curve.every=1", "logger=none", "optim.warmup_steps=1"],
    "tasks": {
        "parity": {
            "says": "tiny",
            "overrides": [
                *("preset=tasks", "data=parity", "model.block_size=8", "model.n_layer=1"),
                *("model.n_embd=8", "data.batch_size=2"),
            ],
            "steps": 2,
            "rates": [1e-3, 1.8e-3, 3.2e-3],
            "floor": 0.5,
            "seconds": 1,
            "quick": True,
        }
    },
    "arms": {"sdpa": {"says": "the baseline"}, "linear": {"says": "another"}},
}
LAYER = """
import torch
from attnlab.attention import SelfAttention


class Mine(SelfAttention):
    def merge(self, mixed, x, v):
        return super().merge(mixed, x, v) * SCALE
"""


def experiments(tmp_path: Path, arms=("sdpa", "linear")) -> Path:
    folder = tmp_path / "experiments" / "ranking"
    folder.mkdir(parents=True)
    content = TINY | {"arms": {name: TINY["arms"][name] for name in arms}}
    (folder / "ranking.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def options(folder: Path, outputs: Path) -> list[str]:
    return [f"--experiments={folder.parent}", f"--conf={CONF}", f"--outputs={outputs}"]


def commit_invented(folder: Path) -> None:
    """Rows of all contestants of the tiny protocol."""
    of, rows = parse(TINY), {}
    for arm, task in of.cells(quick=True):
        run(Course(of, arm, task, rows), quick=True)
    resolver, lines = ConfigResolver(find_paths(folder.parent, CONF, folder, "full")), []
    with hydra_conf(CONF):
        for n, row in enumerate(rows.values()):
            arm = {"arm": "linear" if "attn=linear" in row["overrides"] else "sdpa"}
            id_ = f"run-{resolver(tuple(row['overrides'])).digest}-{n}"
            lines.append(json.dumps(sealed(row | arm | {"task": "parity", "id": id_})))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")


def test_the_plan_runs_nothing(tmp_path):
    folder = experiments(tmp_path)
    ended = attnlab("rank", "--plan", *options(folder, tmp_path / "out"))
    # Each: 3 rates x 2 seeds, as many at 4 n, and 10.
    assert "2 pairs of a variant and a task; about 44 runs are left" in ended.out
    assert ended.code == 0 and not (folder / "rows.jsonl").exists()


def test_another_size_is_planned_in_steps_and_needs_a_gpu(tmp_path, monkeypatch):
    folder = experiments(tmp_path)
    content = yaml.safe_load((folder / "ranking.yaml").read_text())
    task = {**content["tasks"]["parity"], "steps": 4}
    del task["seconds"]
    content["sizes"] = {"baby": {"models": "larger GPTs", "tasks": {"parity": task}}}
    (folder / "ranking.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    own = ["rank", "attn=linear", *options(folder, tmp_path / "out")]
    # Each of two: 6 runs of 4 steps, 6 that continue them to 16, and 10 of 16.
    ended = attnlab(*own, "--size=baby", "--plan")
    assert "about 44 runs are left, 512 steps; their time was not measured" in ended.out
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for words, why in (
        ([*own, "--size=baby"], "on a machine with one, or add --plan"),
        ([*own, "--size=huge", "--plan"], "--size huge is unknown; it must be baby"),
        (["rank", "--size=baby", "--plan"], "need a variant"),
        ([*own, f"--config-dir={tmp_path / 'none'}"], "name another --config-dir"),
    ):
        ended = attnlab(*words)
        assert ended.code == 2 and why in ended.error
    assert not (folder / "rows.jsonl").exists()


def test_a_variant_of_ones_own_configuration_is_known_and_its_changes_too(tmp_path, monkeypatch):
    folder, conf = experiments(tmp_path), tmp_path / "mine" / "conf"
    (conf / "attn").mkdir(parents=True)
    (conf / "attn" / "narrow.yaml").write_text("defaults: [sdpa]\nwindow: 2\nconv: 2\n")
    paths = find_paths(folder.parent, CONF, tmp_path / "out", "full", conf)

    def contestant():
        with hydra_conf(paths.conf):
            return Ranking(paths, ["attn=narrow"], quick=True).own

    first = contestant()
    assert first.convolution and first.code
    with pytest.raises(BadInput, match=r"^there is no attn=narrow; "):
        rank(find_paths(folder.parent, CONF, tmp_path / "out", "full"), ["attn=narrow"])
    (conf / "attn" / "narrow.yaml").write_text("defaults: [sdpa]\nwindow: 3\n")
    second = contestant()
    assert not second.convolution and second.code != first.code


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: nn.Sequential(nn.Conv1d(1, 1, 1)), True),
        (lambda: GPT(SelfAttention, 4, n_layer=1, n_embd=8, block_size=4), False),
        (lambda: GPT(DeltaAttention, 4, n_layer=1, n_embd=8, block_size=4), True),
    ],
)
def test_a_convolution_is_found_in_modules_and_in_our_own_weights(build, expected):
    assert has_convolution(build()) is expected


@pytest.mark.parametrize(
    "attn",
    [
        {"_target_": "layer_of_rank.A"},
        {"x": {"_target_": "layer_of_rank.A"}},
        {"x": ["layer_of_rank.A"]},
    ],
)
def test_a_changed_layer_is_another_contestant_wherever_its_name_stands(
    attn, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "layer_of_rank", raising=False)
    file, paths = tmp_path / "layer_of_rank.py", find_paths(None, None, tmp_path / "out", "full")
    file.write_text("A = 1\n")
    importlib.import_module("layer_of_rank")
    first = code_of(OmegaConf.create(attn), paths)
    assert code_of(OmegaConf.create(attn), paths) == first
    file.write_text("A = 2\n")
    assert code_of(OmegaConf.create(attn), paths) != first


def test_an_unfinished_run_of_other_source_files_starts_again(tmp_path):
    paths = find_paths(experiments(tmp_path).parent, CONF, tmp_path / "out", "full")
    with hydra_conf(paths.conf):
        ranking = Ranking(paths, [], quick=True)

        def task():
            return next(iter(ranking._plan().tasks.values()))

        first, directory = task(), Path(task().directory)
        for sources, kept in ((sources_digest(paths, "ranking"), True), ("others", False)):
            directory.mkdir(parents=True, exist_ok=True)
            write_json(paths.outputs / "began" / f"{first.id}.json", {"sources": sources})
            assert task() == first and directory.exists() is kept


def test_a_run_continues_a_finished_one_only_and_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(Ranking, "_by_this_code", lambda *_: True)
    paths = find_paths(
        experiments(tmp_path, arms=("sdpa",)).parent, CONF, tmp_path / "out", "full"
    )
    with hydra_conf(paths.conf):
        ranking = Ranking(paths, [], quick=False)
        (course,) = ranking.courses
        run(course, quick=True)  # rows from elsewhere
        (needed, *_) = course.needed(quick=False)
        short = ranking.protocol.trial(needed.arm, course.task, needed.rate, 2, needed.seed)
        directory = ranking._directory(short)
        for status, continued in (("interrupted", ""), ("finished", str(directory))):
            directory.mkdir(parents=True, exist_ok=True)
            entries = {"status": status, "step": 2, "fingerprint": ""}
            write_json(directory / "status.json", entries)
            task, trial = ranking._task(needed)
            assert task.continued == continued
            assert task.overrides == (*trial.overrides, "trainer.accelerator=cpu")


def test_rows_of_another_configuration_are_not_compared_with_ones_own(tmp_path):
    folder = experiments(tmp_path)
    commit_invented(folder)
    shutil.copytree(CONF, tmp_path / "conf")
    preset = tmp_path / "conf" / "preset" / "tasks.yaml"
    own = ["rank", "attn=alibi", "--plan", f"--experiments={folder.parent}"]
    own += [f"--conf={tmp_path / 'conf'}", f"--outputs={tmp_path / 'out'}"]
    ended = attnlab(*own)
    assert ended.code == 0 and "2 pairs" in ended.out
    preset.write_text(preset.read_text().replace("n_head: 2", "n_head: 4"))
    ended = attnlab(*own)
    assert ended.code == 2 and "with which sdpa was run on parity, so its rows" in ended.error


def test_only_the_attention_may_differ():
    for words in (["attn=linear", "optim.lr=1"], ["model.n_head=4"], ["nonsense"]):
        with pytest.raises(BadInput, match="only settings of attn may change"):
            own_contestant(words, protocol())
    assert own_contestant(["attn=[linear,sdpa]"], protocol()).overrides == ("attn=linear+sdpa",)
    own = own_contestant(["attn._target_=attnlab.attention.DeltaAttention"], protocol())
    assert own.overrides[0] == "attn=sdpa" and own.partner == "sdpa" and not own.code


def test_rows_keep_the_curve_the_costs_and_the_accuracy_at_the_longest_length():
    metrics = {"probes": {"curve": 1, "attn/entropy": 2}, "costs": {"flops": 3}}
    assert further_values(metrics) == {"curve": 1, "costs": {"flops": 3}}
    metrics["by_length"] = {"64": {"accuracy": 0.5}, "128": {"accuracy": 0.4}}
    assert further_values(metrics)["accuracy_at_length"] == 0.4


def test_publish_refuses_rows_without_a_clean_commit(tmp_path):
    folder = experiments(tmp_path)
    commit_invented(folder)
    rows = [
        row | {"git": {"commit": None, "dirty": True}} for row in read_rows(folder / "rows.jsonl")
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(sealed(row)) + "\n" for row in rows))
    ended = attnlab("rank", "--publish", *options(folder, tmp_path / "out"))
    assert ended.code == 2 and "was made with uncommitted changes" in ended.error
    assert not (folder / "README.md").exists()


def test_publish_writes_the_pages_of_rows_of_committed_settings(tmp_path):
    folder = experiments(tmp_path)
    commit_invented(folder)
    for words in ("init -q", "add experiments/ranking/ranking.yaml", "commit -qm protocol"):
        name = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        subprocess.run(["git", *name, *words.split()], cwd=tmp_path, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.strip()
    now = [
        row | {"git": {"commit": head, "dirty": False}} for row in read_rows(folder / "rows.jsonl")
    ]
    before = [row | {"id": f"run-{n:012}"} for n, row in enumerate(now)]  # of other settings
    for rows, code in ((before, 2), (now, 0)):
        (folder / "rows.jsonl").write_text("".join(json.dumps(sealed(row)) + "\n" for row in rows))
        ended = attnlab("rank", "--publish", *options(folder, tmp_path / "out"))
        assert ended.code == code and ("has outdated settings" in ended.error) == bool(code)
    assert "linear" in (folder / "README.md").read_text()
    assert "linear" in (folder / "ranking-table.html").read_text()


@pytest.mark.long
def test_a_users_layer_is_run_alone_and_again_after_a_change(tmp_path):
    folder, here = experiments(tmp_path), tmp_path / "empty"
    commit_invented(folder)
    before = (folder / "rows.jsonl").read_text()
    here.mkdir()
    (here / "mine_of_rank.py").write_text(LAYER.replace("SCALE", "1.0"))
    command = [sys.executable, "-m", "attnlab", "rank", "attn._target_=mine_of_rank.Mine"]
    command += ["--quick", *options(folder, tmp_path / "out")]

    def ranked() -> list[str]:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "linear" in done.stdout
        assert re.search(r"parity \(2 steps\): better: .*; minus sdpa: \+", done.stdout)
        rows = read_rows(tmp_path / "out" / "own" / "rows" / "ranking.jsonl")
        assert all(row["declared"] is False and row["code"] for row in rows)
        return [row["code"] for row in rows]

    first = ranked()
    assert len(first) >= 16 and ranked() == first  # nothing is run twice
    (here / "mine_of_rank.py").write_text(LAYER.replace("SCALE", "0.5"))
    assert len(set(ranked())) == 2
    assert (folder / "rows.jsonl").read_text() == before
    assert "mine_of_rank" in (tmp_path / "out" / "ranking.html").read_text()


@pytest.mark.long
def test_a_killed_ranking_has_the_same_rows_afterwards(tmp_path):
    def ranked(name: str, kill_at: int | None) -> dict[str, dict]:
        folder = experiments(tmp_path / name, arms=("sdpa",))
        command = [sys.executable, "-m", "attnlab", "rank", "--quick", "--jobs=2"]
        command += options(folder, tmp_path / name / "out")
        rows = folder / "rows.jsonl"
        if kill_at is not None:
            started = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
            while not rows.exists() or len(rows.read_bytes().splitlines()) < kill_at:
                assert started.poll() is None
                time.sleep(0.05)
            os.kill(started.pid, signal.SIGKILL)
            started.wait()
            with rows.open("ab") as stream:
                stream.write(b'{"id": "cut')  # in the middle of a line
        subprocess.run(command, check=True, capture_output=True)
        kept = ("label", "status", "seed", "rate", "overrides", "values")
        return {row["id"]: {key: row[key] for key in kept} for row in read_rows(rows)}

    assert ranked("killed", 7) == ranked("whole", None)


@pytest.mark.long
def test_runs_that_continue_those_of_n_steps_have_the_same_rows(tmp_path, monkeypatch):
    def run_here(plan, known, *_) -> bool:  # without the start of worker processes
        for task in plan.todo:
            (row,) = execute_task(task, known.paths)
            known.store.add(row, task.claims)
        initialize_config_dir(str(CONF), version_base="1.3")
        return True

    def ranked(name: str, apart: bool) -> dict[str, dict]:
        folder, out = experiments(tmp_path / name, arms=("sdpa",)), tmp_path / name / "out"
        paths = find_paths(folder.parent, CONF, out, "full")
        if apart:
            rank(paths, quick=True)
            shutil.rmtree(out / "runs")
        rank(paths)
        return {row["id"]: row for row in read_rows(folder / "rows.jsonl")}

    monkeypatch.setattr("attnlab.ranking.rank.run_plan", run_here)
    continued, whole = ranked("continued", apart=False), ranked("whole", apart=True)
    compared = [row for row in continued.values() if "cpu_seconds_before" in row]
    assert len(compared) >= 4
    for row in compared:
        other = whole[row["id"]]
        assert "cpu_seconds_before" not in other
        assert (row["values"], row["status"]) == (other["values"], other["status"])


def test_when_the_time_is_over_rows_are_kept_and_the_same_call_continues(tmp_path, monkeypatch):
    made = []

    def run_one(plan, known, *_) -> bool:
        task = plan.todo[0]
        (row,) = execute_task(task, known.paths)
        known.store.add(row, task.claims)
        initialize_config_dir(str(CONF), version_base="1.3")
        made.append(row["id"])
        return False

    folder = experiments(tmp_path, arms=("sdpa",))
    monkeypatch.setattr("attnlab.ranking.rank.run_plan", run_one)
    for n in (1, 2):
        ranking, complete = rank(
            find_paths(folder.parent, CONF, tmp_path / "out", "full"), quick=True, minutes=1
        )
        assert not complete and len(ranking.rows) == n
        assert [row["id"] for row in read_rows(folder / "rows.jsonl")] == made
    assert len(set(made)) == 2


@pytest.mark.parametrize(
    ("variant", "why"), [("nonesuch", "nonesuch"), ("flipped", "the mask is flipped")]
)
def test_a_variant_that_cannot_be_ranked_is_refused_before_anything_is_trained(
    variant: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=why):
        rank(find_paths(None, None, tmp_path / "out", "full"), [f"attn={variant}"], quick=True)
    assert not list(tmp_path.rglob("*.jsonl")) and not list(tmp_path.rglob("runs"))
