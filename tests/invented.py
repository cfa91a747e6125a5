"""Run directories without training: the one maker of them for all tests."""

import json
import math
from pathlib import Path
from typing import Any

import yaml

SETTINGS: dict[str, Any] = {
    "attn": {"_target_": "SelfAttention", "kernel": "sdpa", "scale": None, "may_attend": "causal"},
    "model": {"n_head": 4, "block_size": 8},
    "data": {"_target_": "attnlab.data.plays.plays"},
    "optim": {"lr": 1e-3},
    "trainer": {"max_steps": 8},
    "checkpoint_every": 100,
    "outputs": "outputs",
    "force": False,
}
ATTENTION: dict[str, dict[str, Any]] = {"sdpa": {}, "unscaled": {"scale": 1.0}}
ENDED = ("finished", "stopped", "diverged")


def write_run(
    root: Path,
    variant: str,
    seed: int,
    loss: float,
    *overrides: str,
    settings: dict[str, Any] | None = None,
    status: str = "finished",
    step: int = 8,
    sha256: str = "0" * 64,
    precision: str = "32-true",
    folder: Path | None = None,
    curves: dict[str, list[float]] | None = None,
    **measures: float,
) -> Path:
    """Write a run directory as `train.py` does, and return it.

    `overrides` are typed, such as model.n_head=1; `settings` are set without being typed. `status`
    may also be failed or interrupted. `curves` are written to TensorBoard at steps 1, 2, ..., and
    `measures` are those of attention at the end, such as future_mass.
    """
    name = ",".join([f"attn={variant}", *overrides])[:80]
    folder = folder or root / name / f"seed={seed}"
    (folder / ".hydra").mkdir(parents=True)
    config = SETTINGS | {"seed": seed, "variant": variant, "name": root.name}
    config["attn"] = SETTINGS["attn"] | ATTENTION.get(variant, {"may_attend": variant})
    for group, keys in {"data": {"source": sha256}, **(settings or {})}.items():
        config[group] = config.get(group, {}) | keys if isinstance(keys, dict) else keys
    for override in overrides:
        key, _, value = override.partition("=")
        group, dot, below = key.partition(".")
        if dot:
            config[group] = config.get(group, {}) | {below: yaml.safe_load(value)}
        elif group in SETTINGS and not isinstance(SETTINGS[group], dict):
            config[group] = yaml.safe_load(value)
    typed = [f"attn={variant}", f"seed={seed}", *overrides]
    (folder / ".hydra/config.yaml").write_text(yaml.safe_dump(config))
    (folder / ".hydra/overrides.yaml").write_text(yaml.safe_dump(typed))
    if status == "failed":
        (folder / "error.txt").write_text("Traceback\nValueError: a reason\n")
    if status in ENDED:
        metrics: dict[str, Any] = {"variant": variant, "status": status, "seed": seed}
        metrics |= {"steps": step, "baseline": "sdpa", "tokens": 80 * step, "unit": "character"}
        metrics |= {"val_loss": math.nan if status == "diverged" else loss, "parameters": 1000}
        metrics |= {"corpus": {"name": "plays", "sha256": sha256, "symbols": 65}}
        metrics |= {"precision": precision, "device": "cpu", "tokens_per_second": 1e4}
        metrics["probes"] = {f"attn/{name}": value for name, value in measures.items()}
        (folder / "metrics.json").write_text(json.dumps(metrics))
    if curves:
        write_curves(folder, curves)
    return folder


def write_curves(folder: Path, curves: dict[str, list[float]]) -> None:
    """Log scalars to TensorBoard, at steps 1, 2, ..."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for tag, values in curves.items():
            for step, value in enumerate(values, start=1):
                writer.add_scalar(tag, value, step)
