"""Speed of a training step, in pairs within one process.

    python benchmarks/step.py --nanogpt CHECKOUT

compares, at nanoGPT's CPU setting (4 layers, 4 heads, 128 wide, 64 characters, batch 12):
our step with nanoGPT's, and a Lightning run with everything on (bar or lines, TensorBoard,
probes, checkpoints, validation) with a bare loop that trains and validates the same model.
Without --nanogpt the first comparison is left out. Writes benchmarks/step.json.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from attnlab.data.batches import TrainBatches, validation_batches
from attnlab.data.corpus import Corpus
from attnlab.training.record import git_state
from attnlab.training.run import build_corpus, build_model, build_optimizer, run

ROOT = Path(__file__).parent.parent
Steps = Callable[[int], None]


def settings(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def our_steps(cfg: DictConfig, corpus: Corpus, max_steps: int) -> Steps:
    """A bare loop over our model, batches, optimiser and clipping; call it with a step count."""
    net = build_model(cfg, len(corpus.alphabet)).train()
    optimizer, schedule = build_optimizer(cfg)(net, max_steps)
    batches = iter(
        TrainBatches(
            corpus.train,
            batch_size=cfg.data.batch_size,
            block_size=cfg.model.block_size,
            seed=0,
            steps=max_steps,
        )
    )

    def go(steps: int) -> None:
        for _ in range(steps):
            x, y = next(batches)
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()

    def validate() -> None:
        with torch.inference_mode():
            for x, y in validation_batches(corpus.val, cfg.model.block_size):
                float(F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum"))

    go.validate = validate  # type: ignore[attr-defined]
    return go


def nanogpt_steps(checkout: Path, cfg: DictConfig, corpus: Corpus) -> Steps:
    """nanoGPT's own model and optimiser, stepped as its train.py does on a CPU."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT(
        module.GPTConfig(
            n_layer=cfg.model.n_layer,
            n_head=cfg.model.n_head,
            n_embd=cfg.model.n_embd,
            block_size=cfg.model.block_size,
            vocab_size=len(corpus.alphabet),
            dropout=0.0,
            bias=False,
        )
    )
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    T, B, ids = cfg.model.block_size, cfg.data.batch_size, corpus.train

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


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def paired(a: Steps, b: Steps, rounds: int, steps: int) -> dict[str, Any]:
    """Rounds of a, b, a, b, ...: milliseconds a step, and the ratio pair by pair."""
    a(steps), b(steps)
    times = [(seconds(lambda: a(steps)), seconds(lambda: b(steps))) for _ in range(rounds)]
    return summary(times, steps)


def summary(times: list[tuple[float, float]], steps: int) -> dict[str, Any]:
    ratios = sorted(b / a for a, b in times)
    return {
        "a_ms_a_step": 1e3 * statistics.median(a for a, _ in times) / steps,
        "b_ms_a_step": 1e3 * statistics.median(b for _, b in times) / steps,
        "speed_of_a_over_b": statistics.median(ratios),
        "ratios": ratios,
    }


def lightning_against_bare(corpus: Corpus, rounds: int, steps: int) -> dict[str, Any]:
    """Seconds of training and validating `steps` steps, under Lightning (a) and bare (b)."""
    times = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cfg = settings(f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}")
            lightning = run(cfg, Path(folder, "run"), variant="sdpa").metrics["wall_seconds"]
        bare = our_steps(cfg, corpus, steps)
        times.append(
            (lightning, seconds(lambda bare=bare: (bare(steps), bare.validate())))  # type: ignore[misc]
        )
    return summary(times, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    cfg = settings()
    corpus = build_corpus(cfg)
    steps = 40
    results: dict[str, Any] = {
        "machine": {"threads": torch.get_num_threads(), "processor": platform.machine()},
        "torch": torch.__version__,
        "git": git_state(),
        "corpus": corpus.name,
    }
    if options.nanogpt is None:
        results["nanogpt"] = "left out: no --nanogpt CHECKOUT was given"
    else:
        theirs = nanogpt_steps(options.nanogpt, cfg, corpus)
        for variant in ("sdpa", "manual"):
            ours = our_steps(settings(f"attn={variant}"), corpus, (options.rounds + 1) * steps)
            results[f"{variant}_against_nanogpt"] = paired(ours, theirs, options.rounds, steps)
    results["lightning_against_bare"] = lightning_against_bare(corpus, 3, 500)
    text = json.dumps(results, indent=2)
    (ROOT / "benchmarks" / "step.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
