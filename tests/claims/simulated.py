"""Evidence for the repository's claims without a single run: what figures and report need."""

import math

import numpy as np

from attnlab.claims.claim import Claim, Trained
from attnlab.claims.evidence import Evidence, Found
from attnlab.claims.judge import judge_claim, judge_part

SIZES = 11
RNG = np.random.default_rng(0)


def _curve(n, low, high):
    return list(np.linspace(low, high, n))


def _measured(seed):
    """Every key that a measurement of any claim gives."""
    pair = {"scaled": _curve(SIZES, 5.1, 5.1), "unscaled": _curve(SIZES, 5.1, 0.2)}
    masks = ("causal", "flipped", "bidirectional", "peek_one")
    values = {"entropy": pair, "theory": pair, "spread": pair, "trace": pair}
    values["largest"] = {"scaled": _curve(SIZES, 0.04, 0.04), "unscaled": _curve(SIZES, 0.04, 0.9)}
    values["history"] = {f"uniform {m}": _curve(9, -5, 30 * i) for i, m in enumerate(masks)}
    values |= {"float32": _curve(50, 1e-7, 1e-3), "float64": _curve(50, 0, 1e-15)}
    values |= {
        "manual": [1e-4 * 4.0**k for k in range(8)],
        "sdpa": [1e-4 * 3.5**k for k in range(8)],
    }
    for kernel in ("manual", "sdpa", "naive"):
        for dtype in ("fp32", "bf16", "fp16"):
            for factor in (1, 64):
                values[f"{kernel} {dtype} x{factor}"] = 1e-3 * factor
    for size in (32, 64, 128, 256, 512):
        values |= {f"{score} {size}": 1 + size / 500 for score in ("additive", "scaled dot")}
    return values


def _trained(seed):
    values = {"val_loss": 2.0 + 0.1 * RNG.random(), "relative": 2.0 + RNG.random()}
    values |= {"bleu": 90.0 + RNG.random(), "exact match": 0.9, "alignment": 0.9}
    values |= {"source": ["the", "dog"], "target": ["kela", "li"]}
    values["pattern"] = [[0.1, 0.8, 0.1], [0.8, 0.1, 0.1], [0.0, 0.0, 1.0]]
    return values | {"by position": _curve(64, 2.5, 1.0), "future mass": 0.1}


def evidence_of(claim: Claim, budget: str = "quick") -> Evidence:
    """A judged claim whose numbers mean nothing."""
    found = {}
    for part in claim.parts:
        effort = part.budgets.get(budget)
        arms = [arm.name for arm in part.arms] if isinstance(part, Trained) else [""]
        seeds = list(range(effort.seeds)) if effort else []
        rows = {arm: [_row(part, seed) for seed in seeds] for arm in arms} if effort else {}
        found[part.name] = Found(part, seeds, rows, remark="" if effort else "not judged")
        if effort:
            judge_part(found[part.name])
    evidence = Evidence(claim, budget, found)
    judge_claim(evidence)
    return evidence


def _row(part, seed):
    values = _trained(seed) if isinstance(part, Trained) else _measured(seed)
    if isinstance(part, Trained):
        metric = part.metric
        readings = {} if isinstance(metric, str) else {metric.value: RNG.random()}
    else:
        readings = {}
        values[part.value] = RNG.random()
    return {
        "status": "finished",
        "values": values,
        "readings": readings,
        "loss_at_start": math.log(65),
        "provenance": {"corpus": {"name": "tinyshakespeare"}, "git": {"commit": "0" * 40}},
        "label": "simulated",
        "reason": None,
        "times": {"seconds": 1.0},
    }
