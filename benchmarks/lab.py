"""Measures a training step of the lab in a browser beside one of `python train.py`.

    python benchmarks/lab.py                 each model of each lesson, in three rounds
    python benchmarks/lab.py mask --rounds 1 --steps 40    one lesson, as a quick test

The engine runs in Node, which has the JavaScript of Chromium, and train.py with one thread. Both
count CPU time, so that other programs on the machine matter less. Start-up, validations and
pictures are left out.
"""

import argparse
import json
import lzma
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
from machine import ROOT

sys.path.insert(0, str(ROOT))
from scripts.lab import SOURCE, TEXT, LessonRun, engine_settings, read_entries, runs_of

SETTLED = 20  # steps before it are left out: the engine is compiled while it runs
CLOCK = """
import json
import time
import lightning.pytorch as L

class Clock(L.Callback):
    def on_fit_start(self, trainer, lit):
        self.stamps = []

    def on_train_batch_start(self, trainer, lit, batch, batch_idx):
        self.stamps.append(time.process_time())

    def on_train_end(self, trainer, lit):
        print("STAMPS", json.dumps(self.stamps), flush=True)
"""


def step_of_train(run: LessonRun, steps: int, folder: Path) -> float:
    """CPU ms of a step of `python train.py`, from one batch to the next."""
    words = [sys.executable, str(ROOT / "train.py"), *run.overrides, f"seed={run.seed}"]
    words += [f"trainer.{key}={steps}" for key in ("max_steps", "val_check_interval")]
    words += ["+callbacks.clock._target_=clock.Clock", "trainer.accelerator=cpu", "force=true"]
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{folder}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("STAMPS"))
    stamps = json.loads(line.removeprefix("STAMPS"))
    return 1000 * (stamps[-1] - stamps[SETTLED]) / (len(stamps) - 1 - SETTLED)


def step_of_engine(run: LessonRun, steps: int, folder: Path, *, wasm: bool) -> float:
    """CPU ms of a step of the engine."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_bytes(lzma.decompress(TEXT.read_bytes()))
    job = {
        "name": str(folder / "job"),
        "settings": engine_settings(run.overrides) | {"seed": run.seed},
        "steps": steps,
        "wasm": wasm,
        "validate": False,
    }
    words = ["node", str(ROOT / "tests/lab/engine.mjs"), str(SOURCE), str(text)]
    done = subprocess.run(
        words, input=json.dumps([job]), capture_output=True, text=True, check=True
    )
    (found,) = json.loads(done.stdout)
    return statistics.mean(found["ms"][SETTLED:])


def models_of(lessons: list[str]) -> dict[tuple[str, str], tuple[LessonRun, list[str]]]:
    """The models of lessons, each with the names of the lessons that train it."""
    models: dict[tuple[str, str], tuple[LessonRun, list[str]]] = {}
    for lesson in lessons:
        for run in runs_of(lesson):
            key = (run.variant, json.dumps(engine_settings(run.overrides)["model"]))
            models.setdefault(key, (run, []))[1].append(lesson)
    return models


def measured(options: argparse.Namespace) -> machine.Section:
    """The table: medians over rounds, in which the programs take turns."""
    rows = []
    for run, lessons in models_of(options.lessons or list(read_entries())).values():
        times: dict[str, list[float]] = {"train": [], "wasm": [], "script": []}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "clock.py").write_text(CLOCK)
                times["train"].append(step_of_train(run, options.steps, folder))
                times["wasm"].append(step_of_engine(run, options.steps, folder, wasm=True))
                few = SETTLED + 10
                times["script"].append(step_of_engine(run, few, folder, wasm=False))
        cells = [f"{statistics.median(times['train']):.1f}"]
        for engine in ("wasm", "script"):
            ratios = [a / b for a, b in zip(times[engine], times["train"], strict=True)]
            cells.append(f"{statistics.median(times[engine]):.1f}")
            cells.append(f"{statistics.median(ratios):.2f}")
        rows.append([", ".join(lessons), f"`{run.variant}`", *cells])
        print(*rows[-1], flush=True)
    head = ["lessons", "`attn=`", "`train.py`", "WebAssembly", "times", "JavaScript", "times"]
    note = (
        "CPU ms of a training step; *times* is how many times as long as that of `train.py` with "
        f"one thread, a median of {options.rounds} rounds. Start-up, validations and pictures are "
        "left out. The page trains two models at once, each on a core of its own where there are "
        "two."
    )
    return head, rows, note


def main() -> None:
    """Measure, and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", help=", ".join(read_entries()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--page", type=Path, default=ROOT / "benchmarks" / "RESULTS.md")
    options = parser.parse_args()
    if shutil.which("node") is None:
        raise SystemExit("the engine runs in Node, which is not installed")
    machine.write(options.page, "The lab in a browser", measured(options))


if __name__ == "__main__":
    main()
