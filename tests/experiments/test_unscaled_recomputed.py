"""The claim `unscaled`, computed again from its rows: nothing is shared with the judge."""

import json
from pathlib import Path
from statistics import fmean, median

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "experiments" / "unscaled"
ROWS = [json.loads(line) for line in (FOLDER / "rows.jsonl").read_text().splitlines()]
CLAIM = yaml.safe_load((FOLDER / "claim.yaml").read_text())
UNSCALED, NONE, SOFTMAX = "attn=unscaled", "attn=none", "attn=sdpa"
EIGHT, WIDE = "model.n_head=8", "model.n_embd=256"
TEST, PILOTS = range(500, 520), {1000, 1001, 1002}
NEEDED = {10: 10, 20: 17}  # seeds that must agree, of the first 10 or of 20
# Part -> steps, start, settings of X and softmax, settings of none, and what is kept at most (+)
# or at least (-)
KEPT = {
    "one_head_300": (300, "unit", [], [], 0.10),
    "one_head_late_1200": (1200, "unit", [], [], 0.30),
    "eight_heads_300": (300, "unit", [EIGHT], [], 0.50),
    "gpt2_start_300": (300, "gpt2", [], [], -0.60),
    "gpt2_start_1200": (1200, "gpt2", [], [], -0.60),
    "wide_head_share_300": (300, "unit", [WIDE], [WIDE], 0.05),
}


def losses(start: str, attn: str, more: list[str], steps: int) -> dict[int, float]:
    """Seed -> loss of an arm at the rate with the best mean over the seeds of pilots."""
    wanted = {"experiment=unscaled", f"model.init={start}", attn, *more}
    wanted |= {f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}"}
    tried: dict[str, dict[int, float]] = {}
    for row in ROWS:
        rate = {x for x in row["overrides"] if x.startswith(("optim.lr=", "optim.min_lr="))}
        if len(rate) == 2 and {*row["overrides"]} - rate == wanted:
            assert row["status"] == "finished"
            tried.setdefault(min(rate), {})[row["seed"]] = row["values"]["val_loss"]
    pilots = {
        rate: fmean(of[seed] for seed in PILOTS) for rate, of in tried.items() if {*of} >= PILOTS
    }
    return tried[min(pilots, key=lambda rate: pilots[rate])]


def shares(name: str) -> list[float]:
    """What the arm without the scale keeps, by test seed."""
    steps, start, more, of_none, _ = KEPT[name]
    x = losses(start, UNSCALED, more, steps)
    none = losses("unit", NONE, of_none, steps)
    softmax = losses(start, SOFTMAX, more, steps)
    seeds = [seed for seed in TEST if seed in x and seed in none and seed in softmax]
    assert all(none[seed] > softmax[seed] for seed in seeds)
    return [(none[seed] - x[seed]) / (none[seed] - softmax[seed]) for seed in seeds]


@pytest.mark.parametrize("name", KEPT)
def test_enough_seeds_say_what_the_prediction_says(name: str) -> None:
    at = KEPT[name][-1]
    kept = shares(name)
    prediction = CLAIM["predictions"][name.rsplit("_", 1)[0]]
    if prediction.get("role") != "shown":
        weights = [1, abs(at) - 1, -abs(at)]
        assert prediction["weights"] == pytest.approx(weights)
        assert prediction["above" if at > 0 else "below"] == 0
    agree = [share < at if at > 0 else share > -at for share in kept]
    assert any(sum(agree[:n]) >= needed for n, needed in NEEDED.items() if len(kept) >= n)


@pytest.mark.parametrize("name", KEPT)
def test_the_engine_finds_the_same(name: str) -> None:
    from attnlab.claims.claims import Claim, judge_claim
    from attnlab.claims.rows import Rows
    from attnlab.runs.share import share_of

    _, parts = judge_claim(Claim.read(FOLDER / "claim.yaml"), Rows(FOLDER / "rows.jsonl"))
    part = next(part for part in parts if part.name == name)
    assert part.verdict == ("shown" if "share" in name else "confirmed")
    engine = share_of(*part.scores.values())
    assert engine.by_seed == pytest.approx(shares(name)[: len(part.seeds)])
    assert engine.median == pytest.approx(median(engine.by_seed))
