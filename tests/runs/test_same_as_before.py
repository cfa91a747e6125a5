"""Comparisons say what the code before the reduction said about the same runs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnlab.errors import BadInput
from attnlab.runs import report
from attnlab.runs.compare import at_best, compare
from attnlab.runs.frame import read_runs
from tests.invented import write_run
from tests.old import old_code
from tests.runs.cases import CASES

BASELINES = {
    "grid": ("unscaled", "n_head=1", "attn=sdpa,n_head=1", "linear", "n_haed=1"),
    "scales": ("scale=0.3",),
    "worse": ("unscaled",),
}
QUESTIONS = [(name, base) for name in CASES for base in (None, *BASELINES.get(name, ()))]
# Equal settings in two sweeps, and damaged runs, have a longer path in their label now.
OTHER_LABELS = ("repeated", "two_texts", "damaged")
SCRIPT = """
import json, sys
from pathlib import Path
from attnlab.errors import BadInput
from attnlab.runs import pairing, sentences
from attnlab.runs.best_rates import compare_at_best
from attnlab.runs.reading import read_runs

def rows(compared):
    return [
        [c.setting.label, c.seeds, c.differences, list(c.interval), list(c.decision),
         sentences.sentence(c), sentences.verdict(c)]
        for c in compared
    ]

answers = []
for name, baseline in json.loads(sys.argv[2]):
    runs = read_runs(Path(sys.argv[1], name))
    try:
        answers.append(rows(
            compare_at_best(runs, "lr").comparisons if name == "rates"
            else pairing.pairs(runs, baseline)
        ))
    except BadInput:
        answers.append("BadInput")
print(json.dumps(answers))
"""


def as_before(folder: Path) -> None:
    """Rewrite a run directory for the code before: it has status.json, the variant is no setting,
    and the digest of the text is a metric alone."""
    config = yaml.safe_load((folder / ".hydra/config.yaml").read_text())
    del config["variant"], config["data"]["source"]
    (folder / ".hydra/config.yaml").write_text(yaml.safe_dump(config))
    told: dict[str, Any] = {"status": "running", "step": 8}
    if (folder / "error.txt").exists():
        told["status"] = "failed"
    elif (folder / "metrics.json").exists():
        metrics = json.loads((folder / "metrics.json").read_text())
        if metrics:
            told = {"status": metrics["status"], "step": metrics["steps"]}
            told |= {"last_finite_loss": 2.0, "max_steps": 8}
            metrics["symbols"] = metrics["corpus"]["symbols"]
            (folder / "metrics.json").write_text(json.dumps(metrics))
        else:
            told["status"] = "finished"
    (folder / "status.json").write_text(json.dumps(told | {"fingerprint": "", "reason": ""}))


def rates(root: Path) -> None:
    """A sweep over learning rates, with further seeds at the best ones."""
    losses = {"sdpa": {1e-3: 2.5, 3e-3: 2.3, 1e-2: 2.4}, "unscaled": {1e-3: 2.35, 3e-3: 2.6}}
    for variant, by_rate in losses.items():
        best = min(by_rate, key=by_rate.__getitem__)
        for rate, loss in by_rate.items():
            for seed in (0, 1, 2, *((3, 4, 5) if rate == best else ())):
                typed = f"optim.lr={rate:g}", f"optim.min_lr={rate / 10:g}"
                write_run(root, variant, seed, loss + seed / 100, *typed)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Any]]:
    """The invented runs, and what the code before says of each question about them."""
    root = tmp_path_factory.mktemp("same")
    for name, make in {**CASES, "rates": rates}.items():
        make(root / "new" / name)
    shutil.copytree(root / "new", root / "old")
    for file in [*(root / "old").rglob(".hydra")]:
        as_before(file.parent)
    questions = [*QUESTIONS, ("rates", None)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root / "old"), json.dumps(questions)],
        env=os.environ | {"PYTHONPATH": str(old_code() / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(done.stdout)
    return root / "new", dict(zip(questions, answers, strict=True))


def rows(compared: Any) -> list[Any]:
    return [
        [c.label, [*map(int, c.pairs.get("seed", ()))], [*c.differences], [*c.interval],
         [*c.decision], report.sentence(c), report.verdict(c)]
        for c in compared
    ]  # fmt: skip


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


@pytest.mark.parametrize(("name", "baseline"), QUESTIONS, ids=lambda x: x or "default")
def test_a_comparison_is_the_same(both: Any, name: str, baseline: str | None) -> None:
    root, answers = both
    before = answers[name, baseline]
    try:
        now = rows(compare(read_runs(root / name), baseline))
    except BadInput:
        assert before == "BadInput"
        return
    assert_same(now, before, name not in OTHER_LABELS)


def test_the_best_rate_is_the_same(both: Any) -> None:
    root, answers = both
    frame, apart, _ = at_best(read_runs(root / "rates"), "lr")
    assert_same(rows(compare(frame, apart=apart)), answers["rates", None], True)


def assert_same(now: list[Any], before: list[Any], same_labels: bool) -> None:
    if same_labels:
        for row in (*now, *before):
            row[0] = sorted(row[0].split())  # the words are in the order in which they were typed
        assert sorted(row[0] for row in now) == sorted(row[0] for row in before)
        now, before = (sorted(x, key=lambda row: row[0]) for x in (now, before))
    else:  # by what was found
        now, before = (
            sorted(x, key=lambda row: json.dumps([*row[1:5], bool(row[5])])) for x in (now, before)
        )
    for mine, theirs in zip(now, before, strict=True):
        assert json.dumps(mine[1:5]) == json.dumps(theirs[1:5])  # NaN is equal to itself
        for sentence, old in zip(mine[5:], theirs[5:], strict=True):
            assert bool(sentence) == bool(old)
            if same_labels and mine[1]:
                assert not {*numbers(old)} - {*numbers(sentence)}, (old, sentence)
                for word in ("worse", "better", "diverged", "future", "alike", "stopped"):
                    assert (word in sentence) == (word in old), (old, sentence)
