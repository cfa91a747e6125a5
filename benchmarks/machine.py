"""Shared by the benchmarks: settings, a corpus with a clock, a bare training loop, the page."""

import importlib.util
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from attnlab.data.corpus import Corpus, TrainBatches
from attnlab.processor import SMALLER_SETS, instruction_set, processor_model
from attnlab.training.config import RunConfig
from attnlab.training.metrics import git_commit

ROOT = Path(__file__).resolve().parents[1]
COMMIT = git_commit()  # before a section is written, which changes the working tree
Section = tuple[list[str], list[list[str]], str]  # head and rows of a table, and a note


def settings(*overrides: str) -> DictConfig:
    """The composed configuration of conf/train.yaml."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Stamped(Corpus):
    """A corpus that notes the CPU time whenever a batch is drawn."""

    stamps: ClassVar[list[float]] = []
    clock: ClassVar[Callable[[], float]] = staticmethod(time.process_time)  # of all threads

    def train_draw(self, block_size: int) -> Callable[..., Any]:
        draw = super().train_draw(block_size)

        def stamped(*arguments: Any) -> Any:
            self.stamps.append(self.clock())
            return draw(*arguments)

        return stamped


class Step:
    """A bare training loop with our model, batches, optimizer and clipping."""

    def __init__(
        self, config: RunConfig, corpus: Any, steps: int, device: str = "cpu", net: Any = None
    ) -> None:
        made = net or config.model(len(corpus.alphabet))
        self.net = made.to(device).train()
        self.corpus = corpus
        self.device = device
        self.optimizer, self.schedule = config.optimizer(self.net, steps)
        self.T = config.settings.model.block_size
        B = config.settings.data.batch_size
        draw = corpus.train_draw(self.T)
        self.batches = iter(TrainBatches(draw, B, 0, 10**9))

    def __call__(self, steps: int) -> None:
        bf16 = self.device == "cuda"
        for _ in range(steps):
            x, y = (self.placed(ids) for ids in next(self.batches))
            with torch.autocast(self.device, torch.bfloat16, enabled=bf16):
                loss = self.loss(x, y)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
        if bf16:
            torch.cuda.synchronize()

    def placed(self, ids: torch.Tensor) -> torch.Tensor:
        if self.device == "cpu":
            return ids
        return ids.pin_memory().to(self.device, non_blocking=True)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x).flatten(0, 1), y.flatten())

    def validate(self) -> None:
        with torch.inference_mode():
            for x, y in self.corpus.held_out("val", self.T):
                float(self.loss(x, y))


class NanoStep(Step):
    """The same loop around nanoGPT's model and optimizer."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.net(x, y)[1]
        return loss


def nanogpt_model(checkout: Path, given: Any, vocab_size: int) -> Any:
    """The model of a nanoGPT checkout with the sizes of our settings."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = ("n_layer", "n_head", "n_embd", "block_size", "dropout", "bias")
    sizes = {name: given["model"][name] for name in names}
    return module.GPT(module.GPTConfig(vocab_size=vocab_size, **sizes))


def described(device: str) -> str:
    """The machine, the versions, the commit and the command of a measurement."""
    words = ["CHECKOUT" if Path(word).is_dir() else word for word in sys.argv[1:]]
    command = " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *words])
    name = torch.cuda.get_device_name() if device == "cuda" else processor_model()
    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return (
        f"`{command}`: {name}, {instruction_set()}, {threads}, PyTorch {torch.__version__}, "
        f"Python {platform.python_version()}, commit `{COMMIT}`."
    )


def use_instruction_set(name: str) -> None:
    """Start this program again with the variables of an instruction set, unless they are set."""
    wanted = SMALLER_SETS[name]
    if wanted.items() <= os.environ.items():
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)


def write(page: Path, subject: str, section: Section, device: str = "cpu") -> None:
    """Print a section and write it to the page, instead of the one with its title, or last.

    On a CPU, the title names the instruction set: the page keeps a section of each.
    """
    head, rows, note = section
    title = subject if device == "cuda" else f"{subject} ({instruction_set()})"
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
    text = f"## {title}\n\n{table}\n\n{note}\n\n{described(device)}\n"
    print(text, flush=True)
    intro, *parts = re.split(r"(?m)^(?=## )", page.read_text() if page.exists() else "")
    titles = [part.partition("\n")[0].removeprefix("## ") for part in parts]
    parts = [part.rstrip() + "\n" for part in parts]
    if title in titles:
        parts[titles.index(title)] = text
    else:
        parts.append(text)
    page.write_text("\n".join([intro.rstrip() + "\n", *parts]))
