"""Measures a training step of the lab in a browser beside one of `python train.py`.

    python benchmarks/lab.py                 each model of each lesson, in three rounds
    python benchmarks/lab.py mask --rounds 1 --steps 60    one lesson, as a quick test

The engine runs in Node, which has the JavaScript of Chromium, and train.py with one thread. Both
count CPU time, so that other programs on the machine matter less. Start-up, validations and
pictures are left out.
"""

import argparse
import dataclasses
import json
import lzma
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import torch
from machine import ROOT

from attnlab.training.config import read_config
from attnlab.training.run import run as train

sys.path.insert(0, str(ROOT))
from scripts.lab import ENGINE, TEXT, LessonRun, engine_settings, read_entries, runs_of

SETTLED = 20  # steps before it are left out: the engine is compiled while it runs
FEW = 10  # steps of the engine without WebAssembly, which takes ten times as long


def step_of_train(run: LessonRun, steps: int, folder: Path) -> float:
    """CPU ms of a step of `python train.py`, from one batch to the next."""
    given = [f"trainer.{key}={steps}" for key in ("max_steps", "val_check_interval")]
    given += [f"seed={run.seed}", "trainer.accelerator=cpu", "+trainer.limit_val_batches=1"]
    config = read_config(machine.settings(*run.overrides, *given))
    corpus = machine.Stamped(**vars(config.data()))
    corpus.stamps.clear()
    train(dataclasses.replace(config, data=lambda: corpus), folder / "run", variant=run.variant)
    settled = corpus.stamps[SETTLED:]
    return 1000 * (settled[-1] - settled[0]) / (len(settled) - 1)


def step_of_engine(run: LessonRun, steps: int, folder: Path, *, wasm: bool) -> float:
    """CPU ms of a step of the engine; of the second half of the steps if there are few."""
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
    words = ["node", str(ROOT / "lab/tests/jobs.js"), str(ENGINE), str(text)]
    done = subprocess.run(
        words, input=json.dumps([job]), capture_output=True, text=True, check=True
    )
    (found,) = json.loads(done.stdout)
    return float(statistics.mean(found["ms"][min(SETTLED, steps // 2) :]))


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
    models = models_of(options.lessons or list(read_entries()))
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for key, (run, _lessons) in models.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                took = {
                    "train": step_of_train(run, options.steps, folder),
                    "wasm": step_of_engine(run, options.steps, folder, wasm=True),
                    "script": step_of_engine(run, FEW, folder, wasm=False),
                }
            for program, ms in took.items():
                times.setdefault(key, {}).setdefault(program, []).append(ms)
            print(run.variant, took, flush=True)
    rows = []
    for key, (run, lessons) in models.items():
        own = times[key]
        cells = [f"{statistics.median(own['train']):.1f}"]
        for engine in ("wasm", "script"):
            ratios = [a / b for a, b in zip(own[engine], own["train"], strict=True)]
            cells.append(f"{statistics.median(own[engine]):.1f}")
            cells.append(f"{statistics.median(ratios):.1f}")
        rows.append([", ".join(lessons), f"`{run.variant}`", *cells])
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
    parser.add_argument("--steps", type=int, default=100, help="of each run")
    parser.add_argument("--page", type=Path, default=ROOT / "benchmarks" / "RESULTS.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if shutil.which("node") is None:
        raise SystemExit("the engine runs in Node, which is not installed")
    machine.write(options.page, "The lab in a browser", measured(options))


if __name__ == "__main__":
    main()
