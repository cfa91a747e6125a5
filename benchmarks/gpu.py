"""Training on a GPU, in less than 8 minutes. Without a GPU, it exits with a message.

    python benchmarks/gpu.py --nanogpt CHECKOUT

With `preset=baby` (6 layers, width 384, 256 characters, batch size 64) in bf16, measures our step
(eager, compiled, and compiled with CUDA graphs), alternating with nanoGPT's compiled step; its
share of the rate of a large bf16 matrix product; peak memory; the time to a validation loss of
1.47, within 2,500 steps; and the difference between bf16 and fp32 for the same weights. With
`preset=tiny`, measures characters per second of 1, 2, 4, ... parallel commands, until the number
no longer grows. With `preset=micro`, measures the runs per hour of sweeps in one process and
in up to 8 processes. Writes benchmarks/gpu.json.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _common import ROOT, nanogpt_model, settings, write
from omegaconf import DictConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnlab.data.batches import TrainBatches
from attnlab.data.corpora import Corpus
from attnlab.training.config import read_config
from attnlab.training.run import run

TARGET = 1.47


class Step:
    """Our training step on the GPU, or nanoGPT's, depending on the model and optimizer."""

    def __init__(self, cfg: DictConfig, corpus: Corpus, net: torch.nn.Module, optimizer: Any):
        self.net, self.optimizer = net, optimizer
        self.batches = iter(
            TrainBatches(
                corpus.train_draw(cfg.model.block_size),
                batch_size=cfg.data.batch_size,
                seed=0,
                steps=100_000,
            )
        )

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            x, y = (ids.pin_memory().to("cuda", non_blocking=True) for ids in next(self.batches))
            with torch.autocast("cuda", torch.bfloat16):
                loss = self.loss(x, y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
        torch.cuda.synchronize()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x).flatten(0, 1), y.flatten())


class NanoStep(Step):
    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.net(x, y)[1]
        return loss


def ours(cfg: DictConfig, corpus: Corpus, mode: str | None) -> Step:
    net = read_config(cfg).model(len(corpus.alphabet)).cuda().train()
    optimizer, _ = read_config(cfg).optimizer(net, 100_000)
    if mode is not None:
        net.compile(mode=mode)
    return Step(cfg, corpus, net, optimizer)


def theirs(checkout: Path, cfg: DictConfig, corpus: Corpus) -> Step:
    _, model = nanogpt_model(checkout, cfg, len(corpus.alphabet))
    model.cuda()
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cuda")
    return NanoStep(cfg, corpus, torch.compile(model), optimizer)


def milliseconds(step: Step, steps: int) -> float:
    began = time.perf_counter()
    step(steps)
    return 1e3 * (time.perf_counter() - began) / steps


def steps_at_baby(checkout: Path | None, corpus: Corpus, rounds: int) -> dict[str, Any]:
    """Alternate between all arms: milliseconds, speedup over nanoGPT, utilization, peak memory."""
    cfg = settings("preset=baby")
    arms = {
        "eager": ours(cfg, corpus, None),
        "compiled": ours(cfg, corpus, "default"),
        "CUDA graphs": ours(cfg, corpus, "reduce-overhead"),
    }
    if checkout is not None:
        arms["nanoGPT compiled"] = theirs(checkout, cfg, corpus)
    memory, times = {}, {name: [] for name in arms}
    for name, step in arms.items():
        step(5)
        torch.cuda.reset_peak_memory_stats()
        step(5)
        memory[name] = torch.cuda.max_memory_allocated() / 2**20
    for _ in range(rounds):
        for name, step in arms.items():
            times[name].append(milliseconds(step, 30))
    rate, work = product_tflops(), step_tflop(cfg, len(corpus.alphabet))
    results = {
        name: {
            "ms": statistics.median(t),
            "share_of_product_rate": work / (statistics.median(t) / 1e3) / rate,
            "MiB": memory[name],
        }
        for name, t in times.items()
    }
    if checkout is not None:
        for name, t in times.items():
            pairs = zip(times["nanoGPT compiled"], t, strict=True)
            results[name]["times_as_fast_as_nanogpt"] = statistics.median(b / a for b, a in pairs)
    return {"product_tflops": rate, "tflop_a_step": work, "arms": results}


def product_tflops(size: int = 8192) -> float:
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(times) / 1e12


def step_tflop(cfg: DictConfig, vocab_size: int) -> float:
    """TFLOP of a step: per token, 6 N, and 12 L T C for the two products of attention."""
    L, C, T = cfg.model.n_layer, cfg.model.n_embd, cfg.model.block_size
    tokens = cfg.data.batch_size * T
    return (6 * (12 * L * C * C + vocab_size * C) + 12 * L * T * C) * tokens / 1e12


def time_to_loss(corpus: Corpus) -> dict[str, Any]:
    """A run of preset=baby under Lightning, validated every 250 steps."""
    with tempfile.TemporaryDirectory() as folder:
        cfg = settings("preset=baby", "probes=none", "trainer.max_steps=2500")
        result = run(read_config(cfg), Path(folder, "run"), variant="sdpa")
        metrics = result.metrics
        seconds = seconds_to(TARGET, result.folder, metrics["wall_seconds"])
    return {
        "best_val_loss": metrics["best_val_loss"],
        "seconds_to_target": seconds,  # null if it was not reached
        "steps": metrics["steps"],
        "seconds": metrics["wall_seconds"],
        "tokens_per_second": metrics["tokens_per_second"],
        "precision": metrics["precision"],
    }


def seconds_to(target: float, folder: Path, wall_seconds: float) -> float | None:
    """Seconds from the start of training to the first validation with a loss of at most `target`.

    Args:
        target: in nats per character.
        folder: run directory with a TensorBoard log, which has the time of each validation.
        wall_seconds: time of the whole training, which ends with a validation.

    Returns:
        None if no validation reached the target.
    """
    events = EventAccumulator(str(folder)).Reload().Scalars("val/loss")
    ends = [event.wall_time for event in events if event.value <= target]
    return wall_seconds - (events[-1].wall_time - ends[0]) if ends else None


@torch.inference_mode()
def bf16_against_fp32(corpus: Corpus) -> float:
    """Largest difference of the logits of preset=tiny, relative to their standard deviation."""
    cfg = settings("preset=tiny")
    net = read_config(cfg).model(len(corpus.alphabet)).cuda().eval()
    x = corpus.val[: 64 * 16].view(16, 64).long().cuda()
    exact = net(x)
    with torch.autocast("cuda", torch.bfloat16):
        rough = net(x).float()
    return float((exact - rough).abs().max() / exact.std())


def side_by_side(most: int = 16) -> list[dict[str, Any]]:
    """Characters per second of 1, 2, 4, ... processes that train preset=tiny on the same GPU."""
    rows: list[dict[str, Any]] = []
    count = 1
    while count <= most:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "train.py", "probes=none", "logger=none"]
            command += [
                f"outputs={folder}",
                "trainer.max_steps=600",
                "trainer.val_check_interval=600",
            ]
            began = time.perf_counter()
            processes = [
                subprocess.Popen([*command, f"seed={i}"], cwd=ROOT, stdout=subprocess.DEVNULL)
                for i in range(count)
            ]
            codes = [process.wait() for process in processes]
            seconds = time.perf_counter() - began
        if any(codes):
            raise SystemExit(f"{count} runs side by side: exit codes {codes}")
        rows.append({"runs": count, "characters_per_second": count * 600 * 12 * 64 / seconds})
        print(rows[-1], flush=True)
        if (
            count > 1
            and rows[-1]["characters_per_second"] < 1.1 * rows[-2]["characters_per_second"]
        ):
            break
        count *= 2
    return rows


def runs_an_hour(
    counts: Sequence[int] = (4, 16, 64), steps: int = 300, accelerator: str = "cuda"
) -> list[dict[str, Any]]:
    """Runs per hour of `preset=micro`, timed as whole commands, in one process and in several."""
    rows: list[dict[str, Any]] = []
    for launcher, count in (("basic", 4), *(("pool", count) for count in counts)):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "train.py", "-m", f"hydra/launcher={launcher}"]
            command += ["preset=micro", f"seed=range({count})", "probes=none", "logger=none"]
            command += [f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}"]
            command += [f"trainer.accelerator={accelerator}", f"outputs={folder}"]
            began = time.perf_counter()
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - began
        rows.append({"launcher": launcher, "runs": count, "runs_an_hour": 3600 * count / seconds})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, default=os.environ.get("NANOGPT") or None)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: there is no GPU; nothing was measured")
        return
    corpus = read_config(settings()).data()
    write(
        "gpu",
        {
            "gpu": torch.cuda.get_device_name(),
            "corpus": corpus.name,
            "bf16_against_fp32": bf16_against_fp32(corpus),
            "steps": steps_at_baby(options.nanogpt, corpus, options.rounds),
            "time_to_loss": time_to_loss(corpus),
            "side_by_side": side_by_side(),
            "runs_an_hour": runs_an_hour(),
        },
    )


if __name__ == "__main__":
    main()
