"""Time from a command to its first useful result, each in its own process.

    python benchmarks/startup.py

Measures the time to the first training step of `python train.py`, and the whole time of `attnlab
--help`, of two bad overrides, of ten characters of `attnlab sample`, and of `attnlab checkup`
(mostly the checkup itself). Reports medians over rounds, and for comparison the times of `import
torch` and of a plain `import lightning.pytorch`, which attnlab's own start shortens. Writes
benchmarks/startup.json.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import ROOT, write

HOOK = '''
import sys, time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

class Watch(MetaPathFinder):
    """Adds a time stamp to the first training step of attnlab."""

    def find_spec(self, name, path=None, target=None):
        if name != "attnlab.training.lightning_module":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            step = module.GPTModule.training_step

            def stamped(self, *arguments):
                if not Watch.seen:
                    Watch.seen = True
                    print("FIRST STEP", time.time(), file=sys.stderr, flush=True)
                return step(self, *arguments)

            module.GPTModule.training_step = stamped

        spec.loader.exec_module = exec_module
        return spec

Watch.seen = False
sys.meta_path.insert(0, Watch())
'''


def to_the_first_step(folder: Path, number: int) -> float:
    """Seconds from the start of `python train.py` to its first training step.

    A module that Python imports at start-up wraps `training_step` to print the time; nothing else
    in the command is changed.
    """
    hook = folder / "sitecustomize.py"
    hook.write_text(HOOK)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "train.py", f"outputs={folder / str(number)}"]
    command += ["trainer.max_steps=2", "trainer.accelerator=cpu"]
    began = time.time()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    marks = [line for line in done.stderr.splitlines() if line.startswith("FIRST STEP")]
    return float(marks[0].split()[-1]) - began


def whole(command: list[str], code: int) -> float:
    """Seconds of a command that must exit with the given code."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"{command} exited with {done.returncode}: {done.stderr}")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    python, attnlab = [sys.executable], [sys.executable, "-m", "attnlab"]
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        to_the_first_step(folder, 0)  # fills the file cache
        run = str(next((folder / "0").rglob("status.json")).parent)
        for number in range(1, options.rounds + 1):
            commands = {
                "import torch": ([*python, "-c", "import torch"], 0),
                "import lightning.pytorch": ([*python, "-c", "import lightning.pytorch"], 0),
                "attnlab --help": ([*attnlab, "--help"], 0),
                "python train.py attn=typo": ([*python, "train.py", "attn=typo"], 2),
                "python train.py seed=-1": ([*python, "train.py", "seed=-1"], 2),
                "attnlab sample RUN --chars 10": ([*attnlab, "sample", run, "--chars", "10"], 0),
                "attnlab checkup RUN": ([*attnlab, "checkup", run], 0),
            }
            for name, (command, code) in commands.items():
                times.setdefault(name, []).append(whole(command, code))
            name = "python train.py, to the first step"
            times.setdefault(name, []).append(to_the_first_step(folder, number))
    write(
        "startup",
        {name: {"seconds": statistics.median(t), "all": sorted(t)} for name, t in times.items()},
    )


if __name__ == "__main__":
    main()
