"""Shared by the benchmarks: settings, the machine, alternating pairs, and the output files."""

import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from attnlab.training.checkpoints import processor
from attnlab.training.metrics import git_state

ROOT = Path(__file__).parent.parent
Steps = Callable[[int], None]


def settings(*overrides: str) -> DictConfig:
    """The composed configuration of conf/train.yaml."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def machine() -> dict[str, Any]:
    """The machine, versions, and commit that are stored with every result."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "git": git_state(),
    }


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Apart:
    """Training steps in a separate process, which is idle between calls.

    Args:
        make: a module-level function; that process calls it with the arguments to get the steps.
    """

    def __init__(self, make: Callable[..., Steps], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self.process.start()

    def __call__(self, steps: int) -> None:
        self.pipe.send(steps)
        self.pipe.recv()

    def end(self) -> None:
        self.pipe.send(None)
        self.process.join()


def _serve(pipe: Any, make: Callable[..., Steps], arguments: tuple[Any, ...]) -> None:
    go = make(*arguments)
    while (steps := pipe.recv()) is not None:
        go(steps)
        pipe.send(steps)


def paired(a: Steps, b: Steps, rounds: int, steps: int) -> dict[str, Any]:
    """Alternate between a and b: milliseconds per step, and the ratio of each pair."""
    a(steps), b(steps)
    times = []
    for number in range(rounds):
        taken = {}
        for work in (a, b) if number % 2 == 0 else (b, a):
            taken[work] = seconds(partial(work, steps))
        times.append((taken[a], taken[b]))
    return summary(times, steps)


def summary(times: list[tuple[float, float]], steps: int) -> dict[str, Any]:
    """Medians and ratios of pairs of times, each in seconds for `steps` steps."""
    ratios = sorted(b / a for a, b in times)
    return {
        "ours_ms_a_step": 1e3 * statistics.median(a for a, _ in times) / steps,
        "theirs_ms_a_step": 1e3 * statistics.median(b for _, b in times) / steps,
        "times_as_fast": statistics.median(ratios),
        "ratios": ratios,
        "steps": steps,
    }


def nanogpt_model(checkout: Path, cfg: DictConfig, vocab_size: int) -> tuple[Any, Any]:
    """The module model.py of a nanoGPT checkout, and its model with the sizes of `cfg`."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shape = module.GPTConfig(
        n_layer=cfg.model.n_layer,
        n_head=cfg.model.n_head,
        n_embd=cfg.model.n_embd,
        block_size=cfg.model.block_size,
        vocab_size=vocab_size,
        dropout=cfg.model.dropout,
        bias=cfg.model.bias,
    )
    return module, module.GPT(shape)


def command() -> str:
    """The command line of this process, with CHECKOUT for the path of nanoGPT."""
    given = ["CHECKOUT" if Path(word).is_dir() else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *given])


def write(name: str, results: dict[str, Any]) -> None:
    """Write results and machine to benchmarks/<name>.json, and print them."""
    results = {"command": command(), "machine": machine(), **results}
    text = json.dumps(results, indent=2)
    (ROOT / "benchmarks" / f"{name}.json").write_text(text + "\n")
    print(text)
