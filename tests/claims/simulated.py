"""Simulated evidence for the repository's claims, for testing figures and reports."""

import numpy as np

from attnlab.claims.claim import Claim, Trained
from attnlab.claims.evaluate import judge_prediction
from attnlab.claims.judge import judge_claim
from attnlab.claims.results import Evidence, PredictionResult

SIZES = 11
HEADS = ("weight", "shuffled", "price of the head", "price of its neighbor")
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
    values |= {"zero_fill": 0.99, "finite_fill": 0.0}
    for T in [2**k for k in range(4, 12)]:
        values |= {f"GRU at {T}": 300 / T, f"RNN at {T}": 100 / T}
    values |= _of_the_textbook_claims()
    for size in (32, 64, 128, 256, 512):
        values |= {f"{score} {size}": 1 + size / 500 for score in ("additive", "scaled dot")}
    return values


def _of_the_textbook_claims():
    values = {"peaks": [1 / 12] * 12, "cosine": 0.2, "cosine, identity": 0.2}
    for n in (10, 256):
        values[f"by size, {n} keys"] = _curve(5, 0.5, 1.0)
        values[f"histogram, {n} keys"] = [0.05] * 20
        values[f"share above 0.999, {n} keys"] = 0.5
    for what in ("W_q", "scores", "median row", "trace"):
        values |= {f"{what} at {D}": 1.0 for D in (8, 32, 128, 512)}
    for heads in ("one head", "16 heads", "one head, unscaled"):
        curves = {"saturated": _curve(8, 0.0, 0.5), "spread": _curve(8, 1.0, 10.0)}
        values[f"{heads}: curves"] = curves
    return values


def _trained(seed):
    values = {"val_loss": 2.0 + 0.1 * RNG.random(), "by rms": 0.3 + RNG.random(), "patterns": 0.9}
    values |= {"bleu": 90.0 + RNG.random(), "exact match": 0.9, "alignment": 0.9}
    values |= {"source": ["the", "dog"], "target": ["kela", "li"]}
    values["pattern"] = [[0.1, 0.8, 0.1], [0.8, 0.1, 0.1], [0.0, 0.0, 1.0]]
    values |= {"bands": _curve(6, 0.5, 0.0), "bands, brackets": _curve(6, 0.0, 0.5)}
    values |= {f"{name}: {what}": 0.5 for name in ("bracket", "noun") for what in HEADS}
    return values | {"by position": _curve(64, 2.5, 1.0), "future mass": 0.1}


def evidence_of(claim: Claim, budget: str = "quick") -> Evidence:
    """A claim evaluated on arbitrary numbers."""
    found = {}
    for prediction in claim.predictions:
        result = PredictionResult(prediction)
        if budget == "full" or prediction.budget == "quick":
            arms = [arm.name for arm in getattr(prediction, "arms", ())] or [""]
            result.seeds = claim.declared_seeds(prediction)
            result.rows = {arm: [_row(prediction, s) for s in result.seeds] for arm in arms}
        judge_prediction(result, claim)
        found[prediction.name] = result
    evidence = Evidence(claim, found, version=1)
    judge_claim(evidence)
    return evidence


def _row(prediction, seed):
    if isinstance(prediction, Trained):
        values, metric = _trained(seed), prediction.metric
        if not isinstance(metric, str):
            values[metric.value] = RNG.random()
    else:
        values = _measured(seed)
        values[prediction.value] = RNG.random()
    return {
        "status": "finished",
        "values": values,
        "corpus": "tinyshakespeare",
        "git": {"commit": "0" * 40},
        "label": "simulated",
        "reason": None,
        "seconds": 1.0,
    }
