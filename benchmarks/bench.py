"""Measures training on this machine, and writes the page RESULTS.md beside this file.

    python benchmarks/bench.py                           everything; half an hour or more
    python benchmarks/bench.py step --rounds 1 --steps 20    one part, as a quick test
    python benchmarks/bench.py race --nanogpt CHECKOUT   against a clone of nanoGPT
    python benchmarks/bench.py --isa AVX2                as on a processor without AVX-512

A part replaces its section of the page, one for each instruction set. What is compared runs in
turns, because other programs may use the machine; ratios are medians over rounds. Compare numbers
only within a section.
"""

import argparse
import dataclasses
import inspect
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from machine import ROOT, Section, Stamped, Step, nanogpt_model, seconds, settings
from torch.profiler import ProfilerActivity, profile

from attnlab.attention import core
from attnlab.processor import SMALLER_SETS
from attnlab.training.config import RunConfig, read_config
from attnlab.training.lightning_module import GPTModule
from attnlab.training.run import run

# The settings of the section "I only have a macbook (or other cheap computer)" in its README.
NANOGPT = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=100 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 "
    "--dropout=0.0"
).split()
FIRST = """
import time
import lightning.pytorch as L

class First(L.Callback):
    def on_train_batch_start(self, trainer, lit, batch, batch_idx):
        if batch_idx == 0:
            print("FIRST STEP", time.time(), flush=True)
"""


# --- A step: a run, Lightning without its extras, and a bare loop that does the same work.


class StampedByThread(Stamped):
    """Notes the CPU time of this thread."""

    clock = staticmethod(time.thread_time)

    def microseconds(self) -> float:
        """CPU time of a step without validations and the like: the 10th percentile."""
        settled = self.stamps[min(20, len(self.stamps) // 2) :]
        taken = sorted(b - a for a, b in pairwise(settled))
        self.stamps.clear()
        return 1e6 * taken[len(taken) // 10]


def bare(config: RunConfig, corpus: Any, steps: int) -> None:
    go = Step(config, corpus, steps)
    go(steps)
    go.validate()


def lightning(config: RunConfig, corpus: Any, steps: int) -> None:
    given = {"max_steps": steps, "val_check_interval": steps, "gradient_clip_val": 1.0}
    trainer = Trainer(barebones=True, accelerator="cpu", use_distributed_sampler=False, **given)
    net = config.model(len(corpus.alphabet))
    trainer.fit(GPTModule(net, corpus, config.optimizer, config.settings))


def whole(config: RunConfig, corpus: Any, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(dataclasses.replace(config, data=lambda: corpus), Path(folder, "run"), variant="sdpa")


def step(options: argparse.Namespace) -> Section:
    """A training step"""
    rows = []
    for preset in options.presets:
        given = [f"trainer.{x}={options.steps}" for x in ("max_steps", "val_check_interval")]
        given += [f"preset={preset}", "trainer.accelerator=cpu", "train_loss=false"]
        plain = read_config(settings(*given, "probes=none", "logger=none"))
        corpus = StampedByThread(**vars(plain.data()))
        arms = {
            "bare loop": (bare, plain),
            "Lightning, barebones": (lightning, plain),
            "run, probes=none logger=none": (whole, plain),
            "run, probes=none": (whole, read_config(settings(*given, "probes=none"))),
            "run": (whole, read_config(settings(*given))),
        }
        if options.nanogpt:
            arms["nanoGPT"] = (nanogpt, plain)
        times: dict[str, list[float]] = {name: [] for name in arms}
        cpu: dict[str, list[float]] = {name: [] for name in arms}  # of all threads
        own: dict[str, list[float]] = {name: [] for name in arms}  # a step, of this thread
        for _ in announced(options.rounds):
            for name, (work, config) in arms.items():
                values = (config, corpus, options.steps)
                values += (options.nanogpt,) if work is nanogpt else ()
                before = time.process_time()
                times[name].append(seconds(partial(work, *values)))
                cpu[name].append(time.process_time() - before)
                if work is not nanogpt:
                    own[name].append(corpus.microseconds())
        for name, taken in times.items():
            ms = 1e3 * statistics.median(taken) / options.steps
            over = f"{min(own[name]) - min(own['bare loop']):.0f}" if own[name] else ""
            speeds = [speed(taken, times["bare loop"]), speed(cpu[name], cpu["bare loop"])]
            rows.append([preset, name, f"{ms:.2f}", *speeds, over])
    head = ["preset", "what", "ms per step", "speed, bare loop = 1", "by CPU time"]
    head += ["CPU us per step over it"]
    note = (
        "The bare loop has our model, batches and optimizer, and also validates once. The speed "
        "by CPU time, that of all threads, counts no waiting for other programs. The last "
        "column leaves out validations, checkpoints and probes: it is the 10th percentile of the "
        "thread's CPU time between two batches."
    )
    return head, rows, note


def announced(rounds: int) -> Iterator[int]:
    """The numbers of the rounds; each is printed when it begins, because a round takes minutes."""
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        yield number


def speed(taken: Sequence[float], of_bare: Sequence[float]) -> str:
    """The median, over rounds, of how many times as fast as the bare loop it is."""
    ratios = [bare / own for own, bare in zip(taken, of_bare, strict=True)]
    return f"{statistics.median(ratios):.2f}"


def nanogpt(config: RunConfig, corpus: Any, steps: int, checkout: Path) -> None:
    """Steps of nanoGPT's model and optimizer, as in its train.py on a CPU."""
    model = nanogpt_model(checkout, config.settings.plain(), len(corpus.alphabet))
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    T, B = config.settings.model.block_size, config.settings.data.batch_size
    ids = corpus.train.long()
    for _ in range(steps):
        starts = torch.randint(len(ids) - T, (B,))
        x, y = (torch.stack([ids[i + s : i + s + T] for i in starts]) for s in (0, 1))
        model(x, y)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


# --- Commands.


def command(
    words: Sequence[str], cwd: Path, code: int = 0, environment: dict[str, str] | None = None
) -> tuple[float, float, str]:
    """Seconds of a whole command, CPU seconds of its processes, and what it printed."""
    before = os.times()
    began = time.perf_counter()
    done = subprocess.run(
        [str(x) for x in words], cwd=cwd, capture_output=True, text=True, env=environment
    )
    taken = time.perf_counter() - began
    after = os.times()
    if done.returncode != code:
        raise SystemExit(f"{words} exited with {done.returncode}: {done.stderr[-2000:]}")
    cpu = after.children_user - before.children_user
    return taken, cpu + after.children_system - before.children_system, done.stdout


def train(*overrides: object) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *map(str, overrides)]


def start(options: argparse.Namespace) -> Section:
    """Start-up"""
    python = [sys.executable]
    attnlab = [sys.executable, "-m", "attnlab"]
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "first.py").write_text(FIRST)
        short = ["trainer.max_steps=2", "trainer.accelerator=cpu"]
        command(train(*short, "name=warm"), folder)
        run_directory = next(folder.rglob("metrics.json")).parent
        commands = {
            "import torch": ([*python, "-c", "import torch"], 0),
            "import lightning.pytorch": ([*python, "-c", "import lightning.pytorch"], 0),
            "attnlab --help": ([*attnlab, "--help"], 0),
            "python train.py attn=typo": (train("attn=typo"), 2),
            "python train.py seed=-1": (train("seed=-1"), 2),
            "attnlab sample RUN --chars 10": (
                [*attnlab, "sample", run_directory, "--chars", "10"],
                0,
            ),
            "attnlab checkup RUN": ([*attnlab, "checkup", run_directory], 0),
        }
        for number in announced(options.rounds):
            for name, (words, code) in commands.items():
                times.setdefault(f"`{name}`", []).append(command(words, folder, code)[0])
            began = time.time()
            own = (f"name={number}", "+callbacks.first._target_=first.First")
            said = command(train(*short, *own), folder)[2]
            (mark,) = (x.split()[-1] for x in said.splitlines() if x.startswith("FIRST STEP"))
            times.setdefault("`python train.py`, to the first step", []).append(
                float(mark) - began
            )
    rows = [[name, f"{statistics.median(taken):.2f}"] for name, taken in times.items()]
    shares = ", ".join(f"`{name}` {share:.0%}" for name, share in imports().items())
    return ["command", "seconds"], rows, f"Medians of {options.rounds}. Of the second: {shares}."


def imports() -> dict[str, float]:
    """The shares of what `import lightning.pytorch` imports, each with what it imports itself."""
    words = [sys.executable, "-X", "importtime", "-c", "import lightning.pytorch"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()
    rows = [line.removeprefix("import time:").split("|") for line in lines if "|" in line][1:]
    spent = {name.strip(): int(cumulative) for _, cumulative, name in rows}
    named = "torch torch._dynamo torch.distributed.fsdp torchmetrics.functional transformers scipy"
    return {x: spent[x] / spent["lightning.pytorch"] for x in named.split() if x in spent}


def sweep(options: argparse.Namespace) -> Section:
    """Sweeps"""
    rows = []
    for launcher in ("basic", "processes"):
        for runs in options.runs:
            with tempfile.TemporaryDirectory() as folder:
                given = [
                    f"trainer.{x}={options.steps}" for x in ("max_steps", "val_check_interval")
                ]
                words = train("-m", "preset=micro", f"seed=range({runs})", *given)
                words += [f"hydra/launcher={launcher}", "trainer.accelerator=cpu"]
                taken, cpu, _ = command(words, Path(folder))
            rows.append([launcher, str(runs), f"{taken / runs:.1f}", f"{cpu / runs:.1f}"])
    head = ["hydra/launcher", "runs", "seconds a run", "CPU seconds a run"]
    return head, rows, f"{options.steps} steps a run; imports, validations and pictures included."


LOAD = "while True: sum(range(10**6))"


def busy(options: argparse.Namespace) -> Section:
    """A busy machine"""
    # None: GNU OpenMP's own number, 300,000
    times: dict[str | None, list[list[float]]] = {x: [] for x in (None, "20000", "10000", "5000")}
    given = ["preset=tiny", "trainer.max_steps=200", "trainer.val_check_interval=200"]
    given += ["trainer.accelerator=cpu", "probes=none", "train_loss=false"]
    for _ in announced(options.rounds):
        for spins, taken in times.items():
            environment = os.environ | {"GOMP_SPINCOUNT": spins or "300000"}
            pair = []
            for others in (0, 2):
                loads = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(others)]
                try:
                    with tempfile.TemporaryDirectory() as folder:
                        words = train(*given, f"outputs={folder}")
                        pair.append(command(words, ROOT, environment=environment)[0])
                finally:
                    for load in loads:
                        load.kill()
            taken.append(pair)
    rows = []
    for spins, taken in times.items():
        quiet, loaded = (statistics.median(each) for each in zip(*taken, strict=True))
        ratio = statistics.median(b / a for a, b in taken)
        name = spins or "300000, the default of GNU OpenMP"
        rows.append([name, f"{quiet:.1f}", f"{loaded:.1f}", f"{ratio:.1f}"])
    head = ["`GOMP_SPINCOUNT`", "seconds, quiet", "seconds, two other processes", "ratio"]
    note = (
        "`preset=tiny`, 200 steps, whole commands. On two cores, two threads beside two other "
        "processes get half of the time, so a ratio of 2 is the least. attnlab sets 10000."
    )
    return head, rows, note


def race(options: argparse.Namespace) -> Section:
    """Time to nanoGPT's loss"""
    if not options.nanogpt:
        raise SystemExit("the race needs --nanogpt CHECKOUT")
    corpus = read_config(settings()).data()
    rows = []
    data = options.nanogpt / "data" / "shakespeare_char"
    for part in ("train", "val"):
        getattr(corpus, part).numpy().astype(np.uint16).tofile(data / f"{part}.bin")
    symbols = dict(enumerate(corpus.alphabet))
    meta = {
        "vocab_size": len(symbols),
        "itos": symbols,
        "stoi": {x: i for i, x in symbols.items()},
    }
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    for seed in announced(options.rounds):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            found: list[str] = []
            times = []
            for own in (["preset=fast"], []):
                place = folder / str(len(own))
                words = train(*own, f"seed={seed}", f"outputs={place}", "trainer.accelerator=cpu")
                times.append(command(words, ROOT)[0])
                metrics = json.loads(next(place.rglob("metrics.json")).read_text())
                found.append(f"{times[-1]:.1f} s to {metrics['val_loss']:.4f}")
            words = [sys.executable, "train.py", "config/train_shakespeare_char.py", *NANOGPT]
            slow = command([*words, f"--out_dir={folder / 'theirs'}"], options.nanogpt)[0]
            theirs = full_pass(options.nanogpt, folder / "theirs/ckpt.pt", corpus)
        said = f"{slow:.1f} s to {theirs:.4f}"
        rows.append([found[0], said, f"{slow / times[0]:.1f}", found[1], f"{times[1] / slow:.2f}"])
    head = ["`preset=fast`", "nanoGPT", "times as fast", "default run", "its time, nanoGPT = 1"]
    note = (
        "Whole commands with nanoGPT's CPU settings, one seed per row. A full validation pass of "
        "nanoGPT's checkpoint gives its loss. The default run has nanoGPT's sizes and steps."
    )
    return head, rows, note


@torch.inference_mode()
def full_pass(checkout: Path, checkpoint: Path, corpus: Any) -> float:
    """Loss of nanoGPT's checkpoint on the whole validation text, as `val_loss` of our runs."""
    config = read_config(settings())
    model = nanogpt_model(checkout, config.settings.plain(), len(corpus.alphabet)).eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    total = 0.0
    for x, y in corpus.held_out("val", 64):
        logits, _ = model(x, y)  # without targets, it returns only the last position
        total += float(F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
    return total / (len(corpus.val) - 1)


# --- Attention alone.


def attention(options: argparse.Namespace) -> Section:
    """Attention by sequence length"""
    tokens = 2048
    H, D = 4, 32
    kernels = {"manual": core.manual, "sdpa": core.sdpa}
    rows = []
    for T in (64, 128, 256, 512, 1024):
        mask = core.build_mask(core.causal, T, torch.device("cpu"))
        cells = [str(T)]
        for kernel in kernels.values():
            qkv = torch.randn(max(1, tokens // T), T, 3, H, D, requires_grad=True)

            def go() -> None:
                q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # noqa: B023  (B, H, T, D) each
                y = kernel(q, k, v, mask=mask, scale=D**-0.5, dropout=0.0)  # noqa: B023
                y.square().sum().backward()

            go()
            ms = 1e3 * statistics.median(seconds(go) for _ in range(max(3, options.rounds)))
            cells.append(f"{ms:.1f} / {megabytes(go):.0f}")
        rows.append(cells)
    note = f"ms / MB, forward and backward, {tokens} tokens, {H} heads of {D}, fp32."
    return ["T", *kernels], rows, note


def projections(options: argparse.Namespace) -> Section:
    """Queries, keys and values by one matrix or several"""
    tokens = 768
    repeats = 20
    rows = []
    for C, H in ((64, 4), (384, 6), (768, 12)):
        x = torch.randn(tokens, C)
        # A fused matrix is taken apart, and the others put together: all give (tokens, 3 C).
        arms = {"one": [3 * C], "three": [C] * 3, "three a head": [C // H] * (3 * H)}
        layers = {
            name: torch.nn.ModuleList(torch.nn.Linear(C, width, bias=False) for width in widths)
            for name, widths in arms.items()
        }

        def go(matrices: torch.nn.ModuleList) -> None:
            for _ in range(repeats):
                torch.cat([matrix(x) for matrix in matrices], -1).sum().backward()  # noqa: B023

        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(1 + max(9, options.rounds)):  # the first warms up
            for name, matrices in layers.items():
                times[name].append(seconds(partial(go, matrices)) / repeats)
        cells = [f"{C}, {H} heads", f"{1e3 * statistics.median(times['one'][1:]):.2f}"]
        for name in ("three", "three a head"):
            ratios = [b / a for a, b in zip(times["one"][1:], times[name][1:], strict=True)]
            cells.append(
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        rows.append(cells)
    note = (
        f"Forward and backward of the projections alone, fp32, {tokens} tokens. Ratios are "
        "medians over rounds, with their range."
    )
    return ["C", "one matrix, ms", "three, one = 1", "three a head, one = 1"], rows, note


def megabytes(go: Callable[[], None]) -> float:
    """Peak memory of a call: the largest sum of allocated and not yet freed memory."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        go()
    held = peak = 0
    changes = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(changes, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 1e6


PARTS = {
    "step": step,
    "start": start,
    "sweep": sweep,
    "busy": busy,
    "attention": attention,
    "projections": projections,
    "race": race,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--nanogpt", type=Path, default=os.environ.get("NANOGPT") or None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="of each run")
    parser.add_argument("--presets", nargs="+", default=["micro", "tiny"], help="of the part step")
    parser.add_argument("--runs", type=int, nargs="+", default=[8, 24], help="of each sweep")
    parser.add_argument("--page", type=Path, default=ROOT / "benchmarks" / "RESULTS.md")
    parser.add_argument("--isa", choices=SMALLER_SETS, help="a smaller instruction set")
    options = parser.parse_args()
    if options.isa:
        machine.use_instruction_set(options.isa)
    parts = options.parts or [x for x in PARTS if x != "race" or options.nanogpt]
    if unknown := set(parts) - PARTS.keys():
        parser.error(
            f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        )
    for name in parts:
        title = inspect.getdoc(PARTS[name]) or name
        machine.write(options.page, title, PARTS[name](options))


if __name__ == "__main__":
    main()
