"""Run directories with a generated history, without training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.masks import Predicate, build_mask, causal
from attnlab.probes.capture import View
from attnlab.probes.snapshots import history, snapshot

TEXT = "GREMIO:\nGood morrow, neighbour B"
LAYERS, HEADS = 2, 3


def patterns(
    step: int,
    mask: Tensor,
    *,
    seed: int = 0,
    equal: bool = False,
    heads: int = HEADS,
    negative: bool = False,
) -> Tensor:
    """(layers, heads, T, T): a softmax of random scores that grow with the step, or half of its
    difference from another one."""
    stream = torch.Generator().manual_seed(seed)
    scores = torch.randn(LAYERS, heads, len(mask), len(mask), generator=stream) * (1 + step / 10)
    if equal:
        scores = scores[:, :1].expand(scores.shape)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights - patterns(step, mask, seed=seed + 1)) / 2 if negative else weights


def content(
    text: Sequence[str] = TEXT,
    *,
    steps: Sequence[int] = (0, 3, 10, 30),
    may_attend: Predicate = causal,
    nan_from: int | None = None,
    **made: Any,
) -> dict[str, Any]:
    """The content of a history.json; from a step on, all weights may be NaN."""
    mask = build_mask(may_attend, len(text))
    snapshots = []
    for step in steps:
        weights = patterns(step, mask, **made)
        broken = nan_from is not None and step >= nan_from
        if broken:
            weights = weights * torch.nan
        views = [View(i, nn.Identity(), x[None], mask, None, None) for i, x in enumerate(weights)]
        snapshots.append(snapshot(views, step, torch.nan if broken else 4 - step / 20))
    return history(text, views, snapshots)


METRICS: dict[str, Any] = {
    **{"val_loss": 2.5, "unit": "character", "tokens_per_second": 1e4, "device": "cpu"},
    **{"precision": "32-true", "corpus": {"name": "text", "sha256": "a"}, "probes": {}},
}


def run(
    root: Path,
    variant: str,
    kept: dict[str, Any] | None,
    *,
    seed: int = 0,
    status: str = "finished",
) -> Path:
    """A finished run directory of a variant; without a history if `kept` is None."""
    folder = root / f"attn={variant}" / f"seed={seed}"
    (folder / ".hydra").mkdir(parents=True)
    last = kept["snapshots"][-1]["step"] if kept else 30
    told = {"status": status, "step": last, "fingerprint": "", "reason": ""}
    told |= {"last_finite_loss": 2.0, "max_steps": last}
    (folder / "status.json").write_text(json.dumps(told))
    metrics = METRICS | {"status": status, "variant": variant, "steps": last}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / ".hydra" / "config.yaml").write_text(json.dumps({"seed": seed}))
    (folder / ".hydra" / "overrides.yaml").write_text(json.dumps([f"attn={variant}"]))
    if kept:
        (folder / "history.json").write_text(json.dumps(kept))
    return folder
