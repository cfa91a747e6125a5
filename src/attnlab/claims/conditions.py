"""At what a claim was tested: learning rates, lengths, texts, processors, parameters."""

from collections.abc import Collection, Iterable

from attnlab.claims.claim import Claim, Trained
from attnlab.claims.configs import ConfigResolver
from attnlab.claims.results import PredictionResult
from attnlab.claims.rows import Row
from attnlab.errors import BadInput

ONE_RATE = "at one learning rate"  # a claim of a difference says so, or declares rates
EQUAL_PARAMETERS = 0.005  # relative


def describe_conditions(
    claim: Claim, results: dict[str, PredictionResult], resolve: ConfigResolver
) -> str:
    """What the primary predictions that have rows were tested with, in one sentence; empty for
    measurements."""
    ran = [
        each for each in claim.predictions if each.role == "primary" and results[each.name].seeds
    ]
    trained = [each for each in ran if isinstance(each, Trained)]
    rates, steps, corpora = set[float](), set[int](), set[str]()
    single_arms: dict[tuple[str, int], list[Trained]] = {}  # by data set and length
    for prediction in trained:
        for config in resolve.arms(claim, prediction).values():
            if "lr" in config.settings["optim"] and not prediction.rates:
                rates.add(float(config.settings["optim"]["lr"]))
            if not prediction.part_of:
                steps.add(int(config.settings["trainer"]["max_steps"]))
            corpora.add(config.corpus)
            if len(prediction.arms) == 1:
                place = config.corpus, int(config.settings["trainer"]["max_steps"])
                single_arms.setdefault(place, []).append(prediction)
    parts = []
    if any(each.rates for each in trained):
        parts.append("each arm at its best learning rate")
    if rates:
        parts.append(_one("learning rate", [f"{rate:g}" for rate in sorted(rates)]))
    single = [f"{n:,}" for n in sorted(steps)]
    if lengths := sorted({each.steps for each in trained if each.part_of}):
        both = f"{' and '.join(f'{n:,}' for n in lengths)} steps"
        alone = f" (some predictions at {' or '.join(single)} alone)" if single else ""
        parts.append(both + alone)
    elif single:
        parts.append(_one("length", single, " steps"))
    if corpora:
        parts.append(_one("data set", sorted(corpora)))
    timed = [results[each.name] for each in claim.predictions if each.timed]
    rows = [row for result in timed for row in result.all_rows]
    if rows:  # early ones do not name their processor; they are of one
        names = sorted({str(row["processor"]) for row in rows if "processor" in row})
        known = _one("processor", names) if names else "one processor"
        parts.append(known if len(names) < 2 else f"{len(names)} processors ({'; '.join(names)})")
    for group in [*([each] for each in trained if len(each.arms) > 1), *single_arms.values()]:
        if unequal := _parameters([results[each.name] for each in group]):
            parts.append(unequal)
            break
    return f"Tested with {', '.join(parts)}." if parts else ""


def _one(what: str, values: Collection[str], unit: str = "") -> str:
    each = " each" if len(values) > 1 else ""
    return f"one {what}{each} ({' or '.join(values)}{unit})"


def parameters_of(row: Row) -> int:
    """The number of parameters of a run; 0 if it diverged or does not say so."""
    return int(row["values"].get("parameters") or 0)


def _parameters(results: Iterable[PredictionResult]) -> str:
    """Names the arms of a comparison that differ most in parameters; empty if they are equal."""
    arms = [item for result in results for item in result.rows.items()]
    counts = {arm: parameters_of(rows[0]) for arm, rows in arms if rows}
    if not counts or min(counts.values()) == 0:
        return ""
    large, small = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    more = counts[large] / counts[small] - 1
    unequal = f"unequal parameters ({large} has {more:.1%} more than {small})"
    return unequal if more > EQUAL_PARAMETERS else ""


def check_fairness(claim: Claim, pilots: Collection[Row]) -> None:
    """Refuse, by BadInput, to declare a claim that compares unfairly and does not say so."""
    processors = {row.get("processor") for row in pilots}
    primary = [x for x in claim.predictions if x.role == "primary" and isinstance(x, Trained)]
    arms = {arm for each in primary for arm in each.arms}
    for each in claim.predictions:
        if each.timed and each.role != "shown" and len(processors) < 2:
            raise BadInput(
                f"{claim.name}: {each.name} judges times of one processor; set role='shown', or "
                "add pilots of a second processor"
            )
        words = f"{claim.says} {each.says} {each.where}"
        unfair = isinstance(each, Trained) and len(arms) > 1 and not each.rates
        if unfair and each.role == "primary" and ONE_RATE not in words:
            raise BadInput(
                f"{claim.name}: {each.name} compares arms without rates; declare rates=(...), or "
                f"say '{ONE_RATE}'"
            )
