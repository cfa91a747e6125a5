"""Rows of a ranking whose runs are invented: each variant has a best rate and a quality."""

import math

import numpy as np

from attnlab.ranking.protocol import parse

PROTOCOL = {
    "selection_seeds": [1000, 1001],
    "test_seeds": list(range(10)),
    "baseline": "sdpa",
    "models": "small GPTs",
    "common": ["logger=none"],
    "tasks": {
        "text": {
            "says": "a text",
            "overrides": ["preset=micro"],
            "steps": 300,
            "rates": [3.1e-3, 5.6e-3, 1e-2],
            "seconds": 7,
            "quick": True,
        },
        "recall": {
            "says": "a task",
            "overrides": ["data=mqar"],
            "steps": 100,
            "rates": ["1e-3", 1.8e-3, 3.2e-3],
            "floor": 0.03,
            "seconds": 5,
        },
    },
    "arms": {
        "sdpa": {"says": "the baseline"},
        "again": {
            "overrides": ["attn=sdpa"], "seeds_from": 100, "control": "open", "says": "again",
        },
        "slow": {
            "overrides": ["attn=sdpa"], "rate_of_sdpa": 0.1, "control": "worse", "says": "slow",
        },
        "good": {"says": "a better one", "pairs": {"text": "bad"}},
        "bad": {"says": "a worse one", "claims": "to be better"},
    },
}  # fmt: skip
BEST = {"attn=good": 5.6e-3, "attn=bad": 1.8e-3}  # rates; others at 3.2e-3
QUALITY = {"attn=good": 0.1, "attn=bad": -0.1}


def protocol():
    return parse(PROTOCOL)


def settings_of(trial):
    keys = dict(x.split("=", 1) for x in trial.overrides)
    return f"attn={keys['attn']}", float(keys["optim.lr"]), int(keys["trainer.max_steps"])


def row_of(trial, task):
    """The row of a run; noise depends on the seed and the variant, not on the length."""
    attn, rate, steps = settings_of(trial)
    noise = np.random.default_rng([trial.seed, int(1e6 * rate)]).normal(0, 0.01)
    off = abs(math.log10(rate / BEST.get(attn, 3.2e-3)))
    values = {"steps": steps, "parameters": 100_000}
    values["costs"] = {
        "parameters": 10_000,
        "flops": 20_000,
        "cached": 8192 if attn != "attn=bad" else 512,
    }
    quality = QUALITY.get(attn, 0.0) - 0.3 * off + noise
    every = min(25, task.steps)
    status, curve = "finished", {"every": every, "accuracy": [], "losses": {}}
    if task.floor is None:
        for n in range(task.steps, steps + 1, task.steps):
            curve["losses"][str(n)] = 2.5 - quality - 0.0001 * n
    else:
        for n in range(every, steps + 1, every):
            curve["accuracy"].append(min(1.0, 0.03 + n * (0.006 + 0.01 * quality)))
            if len(curve["accuracy"]) > 1 and min(curve["accuracy"][-2:]) >= 0.995:
                status, values["steps"] = "stopped", n
                break
        values["val_accuracy"] = curve["accuracy"][-1]
    return {
        "id": str(trial), "overrides": list(trial.overrides), "seed": trial.seed, "status": status,
        "values": values | {"curve": curve}, "cpu_seconds": 1.0 + quality, "processor": "p",
        "versions": {"attnlab": "1", "torch": "2"},
        "git": {"commit": "0" * 40, "dirty": False}, "label": "a run",
    }  # fmt: skip


def run(course, quick=False, make=row_of):
    """Make the runs that a course needs until it needs none; return how many there were."""
    before = len(course.rows)
    while needed := next(course.needed(quick), None):
        trial = course.protocol.trial(
            needed.arm, needed.task, needed.rate, needed.steps, needed.seed
        )
        assert trial not in course.rows, "this run was made"
        course.rows[trial] = make(trial, needed.task)
    return len(course.rows) - before
