"""Measures training on a GPU in less than 8 minutes, and writes it to the page RESULTS.md.

    python benchmarks/gpu.py --nanogpt CHECKOUT

A step of preset=baby (6 layers, width 384, 256 characters, 64 sequences) in bf16: eager, compiled,
with CUDA graphs, and nanoGPT's, in turn; its share of the rate of a large matrix product; memory.
A run of preset=baby to a validation loss of 1.47, runs of preset=micro per hour in a sweep, and
the rounding of bf16. --device cpu tries the program itself on tiny models.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import ROOT, NanoStep, Section, Step, nanogpt_model, seconds, settings, write

from attnlab.runs.frame import read_scalars
from attnlab.training.config import read_config
from attnlab.training.run import run

TARGET = 1.47  # nats per character
TINY = "model.n_layer=1 model.n_head=1 model.n_embd=16 model.block_size=16 data.batch_size=2"


def steps(options: argparse.Namespace, given: list[str]) -> Section:
    """A step of preset=baby in bf16, in turn with nanoGPT's."""
    config = read_config(settings("preset=baby", *given))
    corpus = config.data()
    device = options.device
    modes = {"eager": None, "compiled": "default", "CUDA graphs": "reduce-overhead"}
    arms: dict[str, Step] = {}
    for name, mode in modes.items():
        arms[name] = Step(config, corpus, 10**5, device)
        if mode and device == "cuda":
            arms[name].net.compile(mode=mode)
    if options.nanogpt:
        model = nanogpt_model(options.nanogpt, config.settings.plain(), len(corpus.alphabet))
        arms["nanoGPT, compiled"] = NanoStep(config, corpus, 10**5, device, torch.compile(model))
    memory = {}
    for name, go in arms.items():
        go(5)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            go(5)
            memory[name] = torch.cuda.max_memory_allocated() / 2**20
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, go in arms.items():
            times[name].append(1e3 * seconds(partial(go, 30)) / 30)
    rate = product_rate(device)
    work = flop_of_step(config.settings.plain(), len(corpus.alphabet))
    last = times[[*times][-1]]
    rows = []
    for name, taken in times.items():
        ms = statistics.median(taken)
        ratio = statistics.median(b / a for b, a in zip(last, taken, strict=True))
        rows.append(
            [
                name,
                f"{ms:.2f}",
                f"{ratio:.2f}",
                f"{work / (ms / 1e3) / rate:.0%}",
                f"{memory.get(name, 0):.0f}",
            ]
        )
    head = ["arm", "ms per step", "speed, last row = 1", "of the product's rate", "MiB"]
    return head, rows, f"A product of two 8,192 x 8,192 matrices: {rate / 1e12:.0f} TFLOP/s."


def product_rate(device: str) -> float:
    """FLOP/s of a large bf16 matrix product."""
    size = 8192 if device == "cuda" else 256
    a, b = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)

    def go() -> None:
        torch.mm(a, b)
        if device == "cuda":
            torch.cuda.synchronize()

    return 2 * size**3 / statistics.median(seconds(go) for _ in range(8))


def flop_of_step(given: Any, vocab_size: int) -> float:
    """FLOP of a step: per token, 6 N, and 12 L T C for the two products of attention."""
    L, C, T = (given["model"][name] for name in ("n_layer", "n_embd", "block_size"))
    return (
        (6 * (12 * L * C * C + vocab_size * C) + 12 * L * T * C) * given["data"]["batch_size"] * T
    )


def whole_runs(options: argparse.Namespace, given: list[str]) -> Section:
    """A run of preset=baby, sweeps of preset=micro, and the rounding of bf16."""
    longest = 4 if given else 2500
    with tempfile.TemporaryDirectory() as folder:
        cfg = settings("preset=baby", "probes=none", f"trainer.max_steps={longest}", *given)
        metrics = (result := run(read_config(cfg), Path(folder, "run"), variant="sdpa")).metrics
        curve = read_scalars(result.folder)["val/loss"]
    reached = [step for step, loss in sorted(curve.items()) if loss <= TARGET]
    spent = metrics["wall_seconds"] / metrics["steps"] * min(reached, default=0)
    rows = [
        [f"preset=baby to a loss of {TARGET}", f"{spent:.0f} s" if reached else "not reached"],
        ["its best loss", f"{metrics['best_val_loss']:.4f} in {metrics['precision']}"],
        ["bf16 against fp32, largest difference of a logit in its sd", rounding(options.device)],
    ]
    sweeps = [("basic", 4), ("processes", 4), ("processes", 32)]
    for launcher, count in sweeps[: 1 if given else 3]:
        with tempfile.TemporaryDirectory() as folder:
            words = ["-m", f"hydra/launcher={launcher}", "preset=micro", f"seed=range({count})"]
            words += ["probes=none", "logger=none", f"outputs={folder}", *given]
            command = partial(subprocess.run, [sys.executable, "train.py", *words], cwd=ROOT)
            taken = seconds(partial(command, check=True, stdout=subprocess.DEVNULL))
        name = f"runs of preset=micro an hour, {launcher}, {count}"
        rows.append([name, f"{3600 * count / taken:.0f}"])
    return ["what", "measured"], rows, f"At most {longest:,} steps of preset=baby."


@torch.inference_mode()
def rounding(device: str) -> str:
    """The largest difference of the logits of preset=tiny, over their standard deviation."""
    config = read_config(settings("preset=tiny"))
    corpus = config.data()
    net = config.model(len(corpus.alphabet)).to(device).eval()
    x = corpus.val[: 64 * 16].view(16, 64).long().to(device)
    exact = net(x)
    with torch.autocast(device, torch.bfloat16):
        rough = net(x).float()
    return f"{float((exact - rough).abs().max() / exact.std()):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, default=os.environ.get("NANOGPT") or None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--page", type=Path, default=ROOT / "benchmarks" / "RESULTS.md")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("benchmarks/gpu.py: there is no GPU; nothing was measured")
        return
    given = [] if options.device == "cuda" else [*TINY.split(), "trainer.accelerator=cpu"]
    write(options.page, "A GPU: a step", steps(options, given), options.device)
    write(options.page, "A GPU: runs", whole_runs(options, given), options.device)


if __name__ == "__main__":
    main()
