"""The claim `unscaled`, computed again from its rows: nothing is shared with the judge."""

import json
from pathlib import Path
from statistics import mean, median

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "experiments" / "unscaled"
ROWS = [json.loads(line) for line in (FOLDER / "rows.jsonl").read_text().splitlines()]
CLAIM = yaml.safe_load((FOLDER / "claim.yaml").read_text())
UNSCALED, NONE, SOFTMAX = "attn=unscaled", "attn=none", "attn=sdpa"
EIGHT = "model.n_head=8"
# Prediction, steps -> the start, further settings, and what is kept at most, or at least.
KEPT = {
    ("one_head", 300): ("unit", [], 0.10),
    ("one_head_late", 1200): ("unit", [], 0.30),
    ("eight_heads", 300): ("unit", [EIGHT], 0.50),
    ("gpt2_start", 300): ("gpt2", [], 0.60),
}
TEST = range(400, 410)


def losses(start: str, attn: str, more: list[str], steps: int) -> dict[int, float]:
    """Seed -> loss of an arm at the rate with the best mean over seeds 1000, 1001 and 1002."""
    wanted = {"experiment=unscaled", f"model.init={start}", attn, *more}
    wanted |= {f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}"}
    tried: dict[str, dict[int, float]] = {}
    for row in ROWS:
        rate = {x for x in row["overrides"] if x.startswith(("optim.lr=", "optim.min_lr="))}
        if len(rate) == 2 and {*row["overrides"]} - rate == wanted:
            assert row["status"] == "finished"
            tried.setdefault(min(rate), {})[row["seed"]] = row["values"]["val_loss"]
    pilots = {
        rate: mean(of[seed] for seed in (1000, 1001, 1002))
        for rate, of in tried.items()
        if {1000, 1001, 1002} <= {*of}
    }
    return tried[min(pilots, key=lambda rate: pilots[rate])]


def shares(name: str, steps: int) -> list[float]:
    """What the arm without the scale keeps at each test seed."""
    start, more, _ = KEPT[name, steps]
    x, none, softmax = (
        losses(start, UNSCALED, more, steps),
        losses("unit", NONE, [], steps),
        losses(start, SOFTMAX, more, steps),
    )
    assert all(none[seed] > softmax[seed] for seed in TEST)
    return [(none[seed] - x[seed]) / (none[seed] - softmax[seed]) for seed in TEST]


@pytest.mark.parametrize(("name", "steps"), KEPT)
def test_every_seed_says_what_the_prediction_says(name: str, steps: int) -> None:
    *_, threshold = KEPT[name, steps]
    prediction = CLAIM["predictions"][name]
    weights = [1, threshold - 1, -threshold]
    assert prediction["weights"] == pytest.approx(weights)
    kept = shares(name, steps)
    if "above" in prediction:  # at most
        assert prediction["above"] == 0 and sum(x < threshold for x in kept) == 10
    else:
        assert prediction["below"] == 0 and sum(x > threshold for x in kept) == 10


@pytest.mark.parametrize(("name", "steps"), KEPT)
def test_the_engine_finds_the_same(name: str, steps: int) -> None:
    from attnlab.claims.claims import judge_claim, read_claim
    from attnlab.claims.rows import Rows
    from attnlab.runs.share import share_of

    verdict, parts = judge_claim(read_claim(FOLDER / "claim.yaml"), Rows(FOLDER / "rows.jsonl"))
    part = next(part for part in parts if part.name == f"{name}_{steps}")
    assert verdict == "holds only if" and part.verdict == "confirmed"
    assert share_of(*part.scores.values()).by_seed == pytest.approx(shares(name, steps))
    assert share_of(*part.scores.values()).median == pytest.approx(median(shares(name, steps)))
