"""What is missing is run: failures, kills and short times lose nothing; a claim end to end."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from torch.backends.cpu import get_cpu_capability

from attnlab.claims import work
from attnlab.claims.claim import Claim
from attnlab.claims.judged_claim import judge_claim, missing_runs
from attnlab.claims.rows import Rows
from attnlab.claims.trials import Run
from attnlab.claims.work import Work, directory_of, run_missing

ROOT = Path(__file__).parents[2]
CLAIM = Claim(
    says="A.", base=["y=1"], first_seed=300, most_seeds=20,
    arms={"a": ["attn=a"], "b": ["attn=b"]},
    predictions={"p": {"says": "", "arms": ["a", "b"], "below": 0.0, "rates": [0.01, 0.03]}},
)  # fmt: skip


def invented(run: Run, directory: Path, folder: Path, reads: list[str]) -> dict:
    """Instead of a training: a loss that follows from the run, or a failure."""
    if (folder / f"fail {run.seed}").exists():
        raise ValueError(f"seed {run.seed} failed")
    if (folder / "slow").exists():
        time.sleep(600)
    time.sleep(0.1 if directory.parents[1] == folder else 0)
    rate = float(next(x for x in run.overrides if x.startswith("optim.lr=")).split("=")[1])
    loss = abs(rate - 0.03) + (run.seed * 7919 % 101) / 1000 + ("attn=b" in run.overrides) / 50
    return {"overrides": list(run.overrides), "seed": run.seed, "status": "finished",
            "values": {"val_loss": loss + (run.seed == 304)}}  # fmt: skip


def continued(folder: Path, jobs: int = 1, minutes: float | None = None) -> Rows:
    """Run what the claim needs in a folder; its rows."""
    rows = Rows(folder / "rows.jsonl")
    of_claim = Work(folder, folder, rows, "abc", partial(missing_runs, CLAIM, rows))
    assert run_missing(of_claim, invented, jobs, minutes) == (not of_claim.missing())
    return rows


def undisturbed(folder: Path) -> dict[Run, dict]:
    """The rows of the claim, by a loop without processes."""
    rows: dict[Run, dict] = {}
    while runs := missing_runs(CLAIM, rows):
        rows |= {run: invented(run, folder / "no/runs/1", folder, []) for run in runs}
    return rows


def same(rows: Rows, others: dict[Run, dict]) -> bool:
    """Equal runs with equal losses, verdict and values; and one line per run."""
    assert len(rows.file.read_text().splitlines()) == len(rows)
    mine, whole = judge_claim(CLAIM, rows), judge_claim(CLAIM, others)
    assert mine.verdict != "undecided" and len(mine.findings[0].values) >= 10
    losses = [{run: row["values"]["val_loss"] for run, row in x.items()} for x in (rows, others)]
    equal = mine.verdict == whole.verdict and mine.findings[0].values == whole.findings[0].values
    return losses[0] == losses[1] and equal


@pytest.mark.slow
def test_the_first_failure_is_raised_and_other_rows_are_kept(tmp_path, monkeypatch):
    failing = tmp_path / "fail 302"
    failing.touch()
    with pytest.raises(ValueError, match="seed 302"):
        continued(tmp_path, jobs=2)
    kept = Rows(tmp_path / "rows.jsonl")
    begun = map(json.loads, (file.read_text() for file in (tmp_path / "runs").glob("*.json")))
    others = {Run(tuple(x["overrides"]), x["seed"]) for x in begun if x["seed"] != 302}
    assert set(kept) == others and len(kept) >= 20
    failing.unlink()
    whole = undisturbed(tmp_path)
    clock = SimpleNamespace(monotonic=lambda: 60 * len(Rows(tmp_path / "rows.jsonl")))
    monkeypatch.setattr(work, "time", clock)  # a minute for each run
    rows = continued(tmp_path, minutes=3)
    assert len(rows) == len(kept) + 3 and missing_runs(CLAIM, rows)
    assert same(rows := continued(tmp_path), whole)
    first = next(iter(whole))
    whole[first] = whole[first] | {"values": {"val_loss": 1e9}}
    assert not same(rows, whole)  # a planted error


@pytest.mark.slow
def test_killed_twice_it_gives_the_same_rows(tmp_path):
    code = f"from {__name__} import *; continued(Path({str(tmp_path)!r}), jobs=2)"
    file, environment = tmp_path / "rows.jsonl", os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/src"}
    for _ in range(2):
        lines = file.read_bytes().count(b"\n") if file.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, cwd=ROOT,
            start_new_session=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        while not file.exists() or file.read_bytes().count(b"\n") < lines + 4:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with file.open("ab") as stream:  # and in the middle of a line
        stream.write(b'{"overrides": ["y=1", "att')
    interrupted = len(Rows(file))
    rows, whole = continued(tmp_path, jobs=2), undisturbed(tmp_path)
    assert 8 <= interrupted < len(rows)
    assert same(rows, whole)
    assert len(list((tmp_path / "runs").glob("*.json"))) == len(rows)  # directories were reused


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_its_workers_at_once(end, tmp_path):
    (tmp_path / "slow").touch()
    # A shell starts what runs in its background without SIGINT, and so the tests.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; from {__name__} import *; continued(Path({str(tmp_path)!r}), jobs=2)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/src"},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while len(list((tmp_path / "runs").glob("*.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(8)  # until the workers train
    process.send_signal(end)
    process.communicate(timeout=20)  # its workers have closed the pipe, too
    assert process.returncode not in (0, None)


def test_a_run_directory_belongs_to_a_run_and_a_commit(tmp_path):
    long = tuple(f"setting.{n}=value" for n in range(300))
    runs = [(("x=1",), 0, "a"), (("x=1",), 1, "a"), (("x=1",), 0, "b"), (long, 0, "a")]
    numbers = []
    for words, seed, commit in [*runs, *runs[::-1]]:
        folder = directory_of(Run(words, seed), tmp_path, commit)
        key = json.loads(folder.with_suffix(".json").read_text())
        assert key == {"overrides": list(words), "seed": seed, "commit": commit}
        numbers.append(folder.name)
    assert numbers[:4] == numbers[:3:-1]
    assert len(set(numbers)) == 4 == len(list((tmp_path / "runs").iterdir()))


OWN = {
    "says": "Mine learns.", "base": "data=text probes=none logger=none", "first_seed": 300,
    "arms": {"mine": ["attn._target_=own_layer.Layer"], "sdpa": ["attn=sdpa"],
             "noise": ["measure.noise"]},
    "predictions": {
        "noise": {"says": "x is small.", "metric": "x", "below": 5.0, "arms": ["noise"]},
        "equal": {"says": "As sdpa.", "arms": ["mine", "sdpa"], "above": 0.0, "below": 0.0,
                  "always": True, "role": "secondary", "seeds": 2},
        "kept": {"says": "A checkpoint.", "read": "measure.files", "metric": "files", "above": 0.5,
                 "arms": ["mine"], "role": "shown", "seeds": 1, "rates": [0.003, 0.01]},
    },
}  # fmt: skip
MEASURE = """
def noise(seed):
    from torch.backends.cpu import get_cpu_capability

    return {"x": seed / 1000, "set": get_cpu_capability()}


def files(folder):
    return {"files": len(list((folder / "checkpoints").iterdir()))}
"""
LAYER = "from attnlab.attention import SelfAttention\n\n\nclass Layer(SelfAttention):\n    pass\n"
SIZES = "model.n_layer=1 model.n_head=2 model.n_embd=16 model.block_size=16 data.batch_size=4"
STEPS = "optim.warmup_steps=1 trainer.max_steps=2 trainer.val_check_interval=2"


@pytest.mark.slow
def test_a_claim_of_ones_own_is_trained_in_an_empty_folder_outside_git(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over a lazy dog " * 100)
    own = OWN | {"base": f"{OWN['base']} {SIZES} {STEPS} data.path={text}".split()}
    folder = tmp_path / "experiments" / "mine"
    folder.mkdir(parents=True)
    (folder / "claim.yaml").write_text(yaml.safe_dump(own))
    (folder / "measure.py").write_text(MEASURE)
    (tmp_path / "own_layer.py").write_text(LAYER)

    def attnlab(*words):
        command = [sys.executable, "-m", "attnlab", "reproduce", "mine", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT / "src")})  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "cannot be checked" in attnlab("--jobs=1")
    file = tmp_path / "outputs" / "claims" / "mine" / "rows.jsonl"
    rows, content = Rows(file), file.read_bytes()
    trained = [row for run, row in rows.items() if len(run.overrides) > 1]
    assert len(rows) - len(trained) == 10
    assert all(row["values"]["steps"] == 2 and row["commit"] == "" for row in trained)
    losses = [row["values"]["val_loss"] for row in trained]
    assert min(losses) > 2.0 and max(losses) < 4.0 and len(set(losses)) > 5
    judged = judge_claim(Claim(**own), rows)
    noise, equal, kept = judged.findings
    assert judged.verdict == "holds" and noise.verdict == "confirmed"
    assert noise.values == [seed / 1000 for seed in range(300, 310)]
    assert equal.values == [0.0, 0.0] and equal.tally.agree == 2
    assert kept.values[0] >= 1
    assert not (folder / "rows.jsonl").exists()
    attnlab()  # nothing is missing
    assert file.read_bytes() == content
    if get_cpu_capability() not in ("AVX2", "AVX512"):
        return  # there is no smaller set
    assert all(row["instruction_set"] == get_cpu_capability() for row in rows.values())
    assert "Same on" in attnlab("--again")
    again = Rows(file.with_name("rows-again.jsonl"))
    assert sorted(run.seed for run in again) == list(range(300, 310))
    assert {row["instruction_set"] for row in again.values()} <= {"AVX2", "SSE4.2"}
    assert {row["values"]["set"] for row in again.values()} <= {"AVX2", "DEFAULT"}
    assert {x["values"]["set"] for x in again.values()} != {get_cpu_capability()}
    assert file.read_bytes() == content
