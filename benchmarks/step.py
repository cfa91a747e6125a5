"""Speed of a training step, in pairs.

    python benchmarks/step.py --nanogpt CHECKOUT

With nanoGPT's CPU settings (4 layers, 4 heads, width 128, 64 characters, batch size 12), compares
our step in fp32 and bf16 with nanoGPT's in fp32; measures the rate of our matrix products as a
share of that of one large product; and compares a run with all features (progress, TensorBoard,
probes, checkpoints, validation), and Lightning's Trainer with none (`barebones=True`, the floor of
Lightning), with a bare loop that trains and validates the same model. Our step and nanoGPT's
alternate in two processes. The run, the Trainer and the loop take turns in a third. Without
--nanogpt, the first comparison is left out. Writes benchmarks/step.json.
"""

import argparse
import os
import statistics
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _common import Apart, Steps, nanogpt_model, paired, seconds, settings, summary, write
from lightning.pytorch import Trainer
from omegaconf import DictConfig

from attnlab.data.batches import TrainBatches, ValidationBatches
from attnlab.data.corpora import Corpus
from attnlab.training.config import read_config
from attnlab.training.run import make_module, run


class Bare:
    """A bare training loop with our model, batches, optimizer, and clipping."""

    def __init__(self, cfg: DictConfig, corpus: Corpus, max_steps: int, bf16: bool) -> None:
        self.cfg, self.corpus, self.bf16 = cfg, corpus, bf16
        self.net = read_config(cfg).model(len(corpus.alphabet)).train()
        self.optimizer, self.schedule = read_config(cfg).optimizer(self.net, max_steps)
        self.batches = iter(
            TrainBatches(
                corpus.train_draw(cfg.model.block_size),
                batch_size=cfg.data.batch_size,
                seed=0,
                steps=max_steps,
            )
        )

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            x, y = next(self.batches)
            with torch.autocast("cpu", torch.bfloat16) if self.bf16 else nullcontext():
                loss = F.cross_entropy(self.net(x).flatten(0, 1), y.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()

    def validate(self) -> None:
        with torch.inference_mode():
            for x, y in ValidationBatches(self.corpus.val, self.cfg.model.block_size):
                float(F.cross_entropy(self.net(x).flatten(0, 1), y.flatten(), reduction="sum"))


def nanogpt_steps(checkout: Path, cfg: DictConfig, corpus: Corpus) -> Steps:
    """Training steps of nanoGPT's model and optimizer, as in its train.py on a CPU."""
    _, model = nanogpt_model(checkout, cfg, len(corpus.alphabet))
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    T, B, ids = cfg.model.block_size, cfg.data.batch_size, corpus.train.long()

    def go(steps: int) -> None:
        for _ in range(steps):
            starts = torch.randint(len(ids) - T, (B,))
            x = torch.stack([ids[i : i + T] for i in starts])
            y = torch.stack([ids[i + 1 : i + 1 + T] for i in starts])
            _, loss = model(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return go


def product_rate(size: int = 2048, repeats: int = 5) -> float:
    """GFLOP/s of a large fp32 matrix product on this machine."""
    a, b = torch.randn(2, size, size)
    a @ b
    times = [seconds(lambda: torch.mm(a, b)) for _ in range(repeats)]
    return 2 * size**3 / statistics.median(times) / 1e9


def step_gflop(cfg: DictConfig, vocab_size: int) -> float:
    """GFLOP of the matrix products of one forward and backward pass: (6 N + 12 L T C) tokens.

    N is the number of weights in matrix products, including the tied head (Kaplan et al. 2020,
    section 2.1). The second term is the two products of attention.
    """
    L, C, T = cfg.model.n_layer, cfg.model.n_embd, cfg.model.block_size
    tokens = cfg.data.batch_size * T
    weights = 12 * L * C * C + vocab_size * C
    return (6 * weights + 12 * L * T * C) * tokens / 1e9


def lightning_against_bare(corpus: Corpus, preset: str, rounds: int, steps: int) -> dict[str, Any]:
    """Seconds of training and validation over `steps` steps: of a run, and of Lightning's Trainer
    without callbacks and loggers, each against a bare loop."""
    config = read_config(
        cfg := settings(
            f"preset={preset}",
            f"trainer.max_steps={steps}",
            f"trainer.val_check_interval={steps}",
            "trainer.accelerator=cpu",
        )
    )
    runs, floors = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            whole = run(config, Path(folder, "run"), variant="sdpa").metrics["wall_seconds"]
        bare = Bare(cfg, corpus, steps, False)
        loop = seconds(lambda bare=bare: (bare(steps), bare.validate()))
        trainer = Trainer(
            barebones=True,
            max_steps=steps,
            val_check_interval=steps,
            accelerator="cpu",
            gradient_clip_val=1.0,
            use_distributed_sampler=False,
        )
        module = make_module(config, corpus)
        floors.append((seconds(lambda to=trainer, module=module: to.fit(module)), loop))
        runs.append((whole, loop))
    return {
        f"Lightning against a bare loop, preset={preset}": summary(runs, steps),
        f"Lightning without callbacks, preset={preset}": summary(floors, steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, default=os.environ.get("NANOGPT") or None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40, help="steps of each round")
    options = parser.parse_args()
    cfg = settings()
    corpus = read_config(cfg).data()
    arms = {"sdpa fp32": ("attn=sdpa", False), "manual fp32": ("attn=manual", False)}
    arms["sdpa bf16"] = ("attn=sdpa", True)
    total = (options.rounds + 1) * options.steps
    results: dict[str, Any] = {"corpus": corpus.name}
    gflop = step_gflop(cfg, len(corpus.alphabet))
    for name, (override, bf16) in arms.items():
        result: Any = "left out: no --nanogpt CHECKOUT was given"
        if options.nanogpt is not None:
            ours = Apart(Bare, settings(override), corpus, total, bf16)
            theirs = Apart(nanogpt_steps, options.nanogpt, cfg, corpus)
            result = paired(ours, theirs, options.rounds, options.steps)
            ours.end(), theirs.end()
        results[f"{name} against nanoGPT"] = result
    results["share of the matrix-product rate, fp32"] = share_of_the_limit(corpus, gflop, options)
    for preset in ("tiny", "micro"):
        results |= lightning_against_bare(corpus, preset, 3, 500)
    write("step", results)


def share_of_the_limit(
    corpus: Corpus, gflop: float, options: argparse.Namespace
) -> dict[str, float]:
    """Rate of our fp32 step divided by that of a large product; medians of alternating pairs."""
    ours = Bare(settings(), corpus, (options.rounds + 1) * options.steps, False)
    ours(options.steps)
    rates, shares = [], []
    for _ in range(options.rounds):
        rate = product_rate()
        mine = gflop * options.steps / seconds(lambda: ours(options.steps))
        rates.append(rate)
        shares.append(mine / rate)
    return {
        "gflop_a_step": gflop,
        "product_gflops": statistics.median(rates),
        "share": statistics.median(shares),
    }


if __name__ == "__main__":
    main()
