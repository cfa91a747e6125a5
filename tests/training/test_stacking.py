"""Stacked runs equal ordinary runs: losses, files, metrics, resuming."""

import csv
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from attnlab.runs.run_directory import flat
from tests.conftest import SMALL
from tests.forked import at_call, ended, is_one_sentence, same_weights
from tests.training.test_sweeps import statuses

SIZES = [*SMALL, "logger=csv", "trainer.log_every_n_steps=1"]


def sweep(text_file: Path, outputs: Path, *changed: str, launcher: str = "stacked") -> list[str]:
    command = ["-m", f"hydra/launcher={launcher}", *SIZES, f"data.path={text_file}"]
    return [*command, f"outputs={outputs}", *changed]


def curves(run: Path) -> dict[str, list[float]]:
    """The losses in metrics.csv, by tag and in the order of the steps."""
    found: dict[str, list[float]] = {}
    with (run / "metrics.csv").open() as stream:
        for row in csv.DictReader(stream):
            for tag in ("train/loss", "val/loss"):
                if row[tag]:
                    found.setdefault(tag, []).append(float(row[tag]))
    return found


def runs_in(outputs: Path) -> dict[str, Path]:
    """The run directories below `outputs`, by their path there."""
    found = [file.parent for file in outputs.rglob("status.json")]
    return {str(run.relative_to(outputs)): run for run in found}


def files_in(run: Path) -> list[str]:
    """The file names; of event files, whose names have times and process ids, the beginning."""
    found = [str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()]
    return sorted(name.partition("tfevents")[0] for name in found)


def largest_difference(ours: Path, theirs: Path) -> float:
    """The largest difference between losses of the same runs in two directories."""
    stacked, alone = runs_in(ours), runs_in(theirs)
    assert stacked.keys() == alone.keys() and stacked
    largest = 0.0
    for name, run in stacked.items():
        assert files_in(run) == files_in(alone[name])
        a, b = curves(run), curves(alone[name])
        assert a.keys() == b.keys() == {"train/loss", "val/loss"}
        for tag in a:
            assert len(a[tag]) == len(b[tag])
            pairs = zip(a[tag], b[tag], strict=True)
            largest = max(largest, *(abs(x - y) for x, y in pairs))
        told = [json.loads((r / "metrics.json").read_text()) for r in (run, alone[name])]
        assert list(told[0]) == list(told[1])
        for key in ("val_loss", "train_loss", "best_val_loss"):
            largest = max(largest, abs(told[0][key] - told[1][key]))
        same = (
            "status",
            "variant",
            "seed",
            "steps",
            "tokens",
            "parameters",
            "corpus",
            "attention",
        )
        assert [told[0][key] for key in same] == [told[1][key] for key in same]
        assert flat(told[0]["probes"]).keys() == flat(told[1]["probes"]).keys()
    return largest


def compared(text_file: Path, tmp_path: Path, *changed: str) -> tuple[float, str]:
    """The largest difference between a stacked and an ordinary sweep, and what the first said."""
    code, said = ended(sweep(text_file, tmp_path / "stacked", *changed), tmp_path)
    assert code == 0, said
    basic = sweep(text_file, tmp_path / "alone", *changed, launcher="basic")
    code, told = ended(basic, tmp_path)
    assert code == 0, told
    return largest_difference(tmp_path / "stacked", tmp_path / "alone"), said


def test_a_stack_trains_each_run_as_if_it_were_alone(text_file: Path, tmp_path: Path) -> None:
    changed = ["attn=unscaled,flipped", "trainer.max_steps=8", "probes=default"]
    largest, said = compared(text_file, tmp_path, *changed, "logger=[tensorboard,csv]")
    assert "stack 1 of 1: 2 runs" in said and "(2 of 2)" in said
    assert largest < 1e-5


@pytest.mark.long
def test_a_stack_in_fp64_is_exact_to_fp64(text_file: Path, tmp_path: Path) -> None:
    changed = ["attn=sdpa,unscaled", "trainer.precision=64-true"]
    largest, said = compared(text_file, tmp_path, *changed)
    assert "stack 1 of 1: 2 runs" in said
    assert largest < 1e-12


@pytest.mark.long
def test_eight_variants_and_two_seeds_for_a_hundred_steps(text_file: Path, tmp_path: Path) -> None:
    scales, masks = "sdpa,unscaled,inverse_scale", "flipped,bidirectional,peek_one"
    attn = f"attn={scales},{masks},identical_heads,identical_qkv"
    changed = [attn, "seed=0,1", "trainer.max_steps=100", "trainer.val_check_interval=20"]
    largest, said = compared(text_file, tmp_path, *changed)
    print(f"largest difference of a loss: {largest:.2g}")
    assert "stack 1 of 1: 16 runs" in said
    assert largest < 1e-5


def ten_steps(text_file: Path, outputs: Path) -> list[str]:
    changed = ["attn=sdpa,unscaled", "seed=0,1", "trainer.max_steps=10", "checkpoint_every=2"]
    return sweep(text_file, outputs, *changed, "trainer.val_check_interval=5")


@pytest.fixture(scope="module")
def uninterrupted(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    code, said = ended(ten_steps(text_file, folder / "o"), folder)
    assert code == 0, said
    return folder / "o"


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        pytest.param(
            signal.SIGTERM, 143, "Terminated; the same command resumes.", marks=pytest.mark.long
        ),
        pytest.param(
            signal.SIGINT, 130, "Interrupted; the same command resumes.", marks=pytest.mark.long
        ),
        pytest.param(signal.SIGKILL, -9, "", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_stack_resumes_as_a_stack(
    sent: signal.Signals,
    code: int,
    said: str,
    uninterrupted: Path,
    text_file: Path,
    tmp_path: Path,
) -> None:
    command = ten_steps(text_file, tmp_path / "o")
    # The 27th call is that of the third run in its seventh step.
    found, told = ended(command, tmp_path, at_call(27, "training_step", sent))
    assert found == code and said in told, told
    left = "running" if sent == signal.SIGKILL else "interrupted"
    status = [json.loads(f.read_text()) for f in (tmp_path / "o").rglob("status.json")]
    assert [each["status"] for each in status] == 4 * [left]
    if sent != signal.SIGKILL:
        assert [each["step"] for each in status] == 4 * [6]
    found, told = ended(command, tmp_path)
    assert found == 0 and "stack 1 of 1: 4 runs" in told, told
    logs = [f.read_text() for f in (tmp_path / "o").rglob("run-*.log")]
    steps = sorted(log.partition("Resuming from step ")[2][0] for log in logs if "Resum" in log)
    # The fourth run had not begun its seventh step: a signal lets it finish the sixth.
    assert steps == (["5", "6", "6", "6"] if sent == signal.SIGKILL else 4 * ["6"])
    assert largest_difference(tmp_path / "o", uninterrupted) < 1e-6
    ours, theirs = runs_in(tmp_path / "o"), runs_in(uninterrupted)
    assert all(same_weights(run, theirs[name]) for name, run in ours.items())


@pytest.mark.long
def test_incompatible_runs_form_several_stacks(text_file: Path, tmp_path: Path) -> None:
    changed = ["attn=sdpa,manual", "data.batch_size=2,4", "optim.lr=1e-3,1e-2"]
    largest, said = compared(text_file, tmp_path, *changed)
    assert "stack 4 of 4: 2 runs" in said
    assert largest < 1e-5


@pytest.mark.long
def test_runs_that_end_early_leave_the_stack(text_file: Path, tmp_path: Path) -> None:
    """Runs of different lengths, a diverging run, and accumulated gradients."""
    changed = ["trainer.max_steps=3,8", "optim.lr=1e-2,1e38", "trainer.accumulate_grad_batches=2"]
    code, said = ended(sweep(text_file, tmp_path / "stacked", *changed), tmp_path)
    assert code == 0 and "diverged at step" in said, said
    basic = sweep(text_file, tmp_path / "alone", *changed, launcher="basic")
    code, said = ended(basic, tmp_path)
    assert code == 0, said
    ours, theirs = runs_in(tmp_path / "stacked"), runs_in(tmp_path / "alone")
    assert ours.keys() == theirs.keys()
    ends = [json.loads((run / "status.json").read_text())["status"] for run in ours.values()]
    assert sorted(ends) == ["diverged", "diverged", "finished", "finished"]
    for name, run in ours.items():
        told = [json.loads((r / "status.json").read_text()) for r in (run, theirs[name])]
        status, expected = ([each[key] for key in ("status", "step", "reason")] for each in told)
        assert status == expected
        a, b = curves(run), curves(theirs[name])
        assert a["train/loss"] == pytest.approx(b["train/loss"], abs=1e-5, nan_ok=True)


@pytest.mark.long
def test_a_finished_stack_is_an_ordinary_finished_sweep(text_file: Path, tmp_path: Path) -> None:
    for first, second in (("stacked", "basic"), ("basic", "stacked")):
        outputs = tmp_path / first
        for launcher, done in ((first, 0), (second, 2)):
            command = sweep(text_file, outputs, "attn=sdpa,unscaled", launcher=launcher)
            code, said = ended(command, tmp_path)
            assert code == 0 and said.count("finished; already done") == done, said


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("model.dropout=0.0,0.1", "(model.dropout is not supported); use another hydra/launcher"),
        ("model.activation=gelu,relu_squared", "model.activation=relu_squared cannot be stacked"),
        ("compile=true", "(compile=true is not supported)"),
        ("logger=wandb", "(logger=wandb is not supported)"),
        ("attn=sdpa,cosine", "attn=cosine cannot be stacked"),
    ],
)
def test_runs_that_cannot_be_stacked_are_refused_before_any_run_starts(
    changed: str, told: str, text_file: Path, tmp_path: Path
) -> None:
    if "wandb" in changed:
        pytest.importorskip("wandb")
    code, said = ended(sweep(text_file, tmp_path / "o", changed), tmp_path)
    assert code == 2 and is_one_sentence(said) and told in said, said
    assert not runs_in(tmp_path / "o")


def test_a_run_that_fails_does_not_stop_the_others(text_file: Path, tmp_path: Path) -> None:
    """A bad setting, and an error while the others train."""
    command = sweep(text_file, tmp_path / "o", "model.n_head=3,2", "seed=0,1")

    def broken() -> None:
        from attnlab.training.lightning_module import TaskModule

        step = TaskModule.training_step

        def breaks(self: TaskModule, batch: Any, batch_idx: int) -> Any:
            if (self.seed, batch_idx) == (1, 2):
                raise ZeroDivisionError("a fault")
            return step(self, batch, batch_idx)

        TaskModule.training_step = breaks  # type: ignore[method-assign]

    code, said = ended(command, tmp_path, broken)
    assert code == 1 and "error: refused, 2 of" in said and "error: failed, 1 of" in said, said
    assert statuses(tmp_path / "o") == {"seed=0": "finished", "seed=1": "failed"}


WRONG = '''
from attnlab.attention.layer import SelfAttention

class Own(SelfAttention):
    """Uses its scale outside of the kernel, which a stack does not know."""

    def split(self, x, start=0):
        q, k, v = super().split(x, start)
        return q * self.scale, k, v
'''


def test_a_layer_that_a_stack_would_compute_wrongly_is_refused(
    text_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(WRONG)
    changed = ["attn._target_=own.Own", "attn.scale=1.0,2.0"]
    command = sweep(text_file, tmp_path / "o", *changed)
    code, said = ended(command, tmp_path, lambda: sys.path.append(str(tmp_path)))
    assert code == 2 and "differ from those of a run alone" in said, said
    assert not runs_in(tmp_path / "o")
