"""Run directories without training, with all files that readers need."""

import json
import math
from pathlib import Path
from typing import Any

import yaml

ATTENTION: dict[str, dict[str, Any]] = {"sdpa": {}, "unscaled": {"scale": 1.0}}


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
    folder: Path | None = None,
    **probes: float,
) -> Path:
    """A run directory as `train.py` writes it; `overrides` are typed, such as model.n_head=1."""
    name = ",".join([f"attn={variant}", *overrides])[:80]
    folder = folder or root / name / f"seed={seed}"
    (folder / ".hydra").mkdir(parents=True)
    attn: dict[str, Any] = {"kernel": "sdpa", "scale": None, "may_attend": variant}
    config: dict[str, Any] = {"attn": attn | ATTENTION.get(variant, {}), "seed": seed}
    config |= {"model": {"n_head": 4}, "optim": {"lr": 1e-3}, "trainer": {"max_steps": 8}}
    config |= {"name": root.name, "outputs": "outputs", "force": False}
    for group, keys in (settings or {}).items():
        config[group] = keys if not isinstance(keys, dict) else config.get(group, {}) | keys
    for override in overrides:
        key, _, value = override.partition("=")
        group, dot, key = key.partition(".")
        if dot:
            config.setdefault(group, {})[key] = yaml.safe_load(value)
    typed = [f"attn={variant}", f"seed={seed}", *overrides]
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(typed))
    metrics: dict[str, Any] = {"variant": variant, "seed": seed, "status": status}
    metrics |= {"corpus": {"name": "plays", "sha256": sha256}, "steps": step, "tokens": 80 * step}
    metrics |= {"val_loss": math.nan if status == "diverged" else loss, "tokens_per_second": 1e4}
    metrics |= {"device": "cpu", "precision": "32-true", "unit": "character", "symbols": 65}
    metrics |= {"baseline": "sdpa", "parameters": 1000}
    metrics["probes"] = {f"attn/{name}": value for name, value in probes.items()}
    if status in {"finished", "stopped", "diverged"}:
        (folder / "metrics.json").write_text(json.dumps(metrics))
    told = {"status": status, "step": step, "fingerprint": "", "reason": "", "max_steps": 8}
    (folder / "status.json").write_text(json.dumps(told | {"last_finite_loss": 2.0}))
    return folder
