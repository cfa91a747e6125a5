"""A fair trial: every arm at its best learning rate, at every declared length of training.

Rates are chosen on selection seeds, before a claim is declared; their rows are the pilots.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from attnlab.claims.claim import Arm, Claim, Prediction, Trained
from attnlab.claims.rows import Row, score
from attnlab.runs.best_rates import best_rate

PILOT_SEED = 1000  # the first seed of the pilots; reference values have it too
PILOTS = 5  # seeds of each arm at its chosen rate
SELECTION = 3  # seeds of each other rate
SEEDS = range(PILOT_SEED, PILOT_SEED + SELECTION)
EXTENSIONS = 2  # how often the rates of an arm are extended at an edge
FACTOR = 3.4  # the largest one between two rates; 1e-3, 3e-3, 1e-2 are about sqrt(10) apart
Tried = Mapping[float, Mapping[int, float]]  # rate -> seed -> validation loss


def prepare(claim: Claim, pilots: Sequence[Row]) -> Claim:
    """Split predictions into one for each length, and add the chosen rates to their arms."""
    parts = [_choose(part, pilots) for each in claim.predictions for part in _lengths(each)]
    first = [x.name for x in parts if isinstance(x, Trained) and x.part_of == claim.headline]
    headline = first[0] if first and claim.headline else claim.headline
    return replace(claim, predictions=tuple(parts), headline=headline)


def _lengths(prediction: Prediction) -> Sequence[Prediction]:
    if not isinstance(prediction, Trained) or not prediction.lengths:
        return [prediction]
    return [
        replace(
            prediction,
            name=f"{prediction.name}_{steps}",
            says=f"{prediction.says.rstrip('.')} ({steps:,} steps).",
            arms=tuple(
                Arm(f"{arm.name}, {steps} steps", (*arm.overrides, *_steps(steps)))
                for arm in prediction.arms
            ),
            part_of=prediction.name,
            steps=steps,
            budget=prediction.budget if steps == min(prediction.lengths) else "full",
        )
        for steps in prediction.lengths
    ]


def _steps(steps: int) -> tuple[str, ...]:
    return f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}"


def _choose(prediction: Prediction, pilots: Sequence[Row]) -> Prediction:
    if not isinstance(prediction, Trained) or not prediction.rates:
        return prediction
    chosen = {}
    for arm in prediction.arms:
        tried = rates_tried(arm, pilots)
        if not next_rates(prediction.rates, tried):
            chosen[arm.name] = best_rate(tried, SEEDS)
    if len(chosen) < len(prediction.arms):
        return prediction
    arms = (at_rate(arm, chosen[arm.name].rate) for arm in prediction.arms)
    return replace(prediction, arms=tuple(arms), chosen=chosen)


def at_rate(arm: Arm, rate: float) -> Arm:
    """An arm at a learning rate, which decays to a tenth of it."""
    return replace(
        arm, overrides=(*arm.overrides, f"optim.lr={rate:g}", f"optim.min_lr={rate / 10:g}")
    )


def rates_tried(arm: Arm, pilots: Sequence[Row]) -> Tried:
    """The validation losses of an arm in the pilots; a diverged run has an infinite loss."""
    tried: dict[float, dict[int, float]] = {}
    for row in pilots:
        if row.get("overrides") == list(arm.overrides):
            tried.setdefault(row["rate"], {})[row["seed"]] = score(row, "val_loss")
    return tried


def next_rates(grid: Sequence[float], tried: Tried, seeds: Collection[int] = SEEDS) -> list[float]:
    """The rates to try next: those of the grid, then one beyond the edge at which the best lies.

    Empty if the selection is complete.
    """
    complete = sorted(rate for rate, losses in tried.items() if losses.keys() >= set(seeds))
    missing = [rate for rate in grid if rate not in complete]
    if missing or len(complete) - len(grid) >= EXTENSIONS:
        return missing
    best = best_rate(tried, seeds)
    if not best.at_edge:
        return []
    beside = complete[1] if best.rate == complete[0] else complete[-2]
    return [float(f"{best.rate**2 / beside:.2g}")]


def rate_errors(prediction: Trained) -> Iterator[str]:
    """What is invalid about the rates and lengths of a prediction."""
    rates = prediction.rates
    if rates and (len(rates) not in (3, 4) or list(rates) != sorted(set(rates))):
        yield f"{prediction.name}: rates must be three or four, ascending; they are {rates}"
    if any(b / a > FACTOR for a, b in pairwise(rates)):
        yield f"{prediction.name}: neighboring rates may differ by a factor of sqrt(10) at most"
    if len(prediction.lengths) == 1 or len(set(prediction.lengths)) < len(prediction.lengths):
        yield f"{prediction.name}: lengths must be two numbers of steps, such as (300, 1200)"
