"""Says in sentences what a comparison found: which way, how much, against what, in how many seeds,
and what attention did."""

import json
import math
import shlex
from collections.abc import Sequence
from statistics import median

from attnlab.installation import training_command
from attnlab.runs.pairing import Comparison, Setting, reads_ahead
from attnlab.runs.reading import Run
from attnlab.runs.seed_statistics import LOOKS
from attnlab.runs.settings import settings_with

EQUAL = 5e-4  # nats; smaller differences are called equal
SLOWER = 0.02  # nats; from here on a sentence says what became of the training
EQUAL_HEADS = 0.9995  # similarity of heads that attend alike
SPREAD = 1.25  # entropies that differ by less than this factor are called about equal


def sentence(comparison: Comparison) -> str:
    """What a setting did against its baseline; empty for the baseline itself."""
    c = comparison
    if c.is_baseline:
        return ""
    if not c.pairs:
        return f"{c.setting.label} has no difference: {c.why}."
    parts = [f"{claim(c)}{_training(c)}.", _stopped(c), _precisions(c), attention(c)]
    return " ".join(part for part in parts if part)


def alone(setting: Setting) -> str:
    """What measures say of a setting without a baseline; empty for ordinary attention."""
    sentences, ahead = [], _middle(setting.numbers("attn/future_mass"))
    name = setting.label or "This model"
    if any(map(reads_ahead, setting.runs)):
        sentences.append(
            f"{name} reads the future (weight {ahead:.2g} on later positions), so its loss "
            "does not measure prediction."
        )
    if (alike := _middle(setting.numbers("attn/head_similarity"))) > EQUAL_HEADS:
        sentences.append(f"All heads of {name} attend alike (similarity {alike:.3f}).")
    return " ".join(sentences)


def claim(comparison: Comparison) -> str:
    """The first sentence, without its stop, also as a title: which way, how much, against what."""
    c = comparison
    if c.is_baseline or c.baseline is None or not c.pairs:
        return sentence(c).rstrip(".")
    name, other, n = c.setting.label, c.baseline.label, len(c.pairs)
    seeds = "one seed" if n == 1 else f"{n} seeds"
    losses = [_middle([pair[i].loss for pair in c.pairs]) for i in (0, 1)]
    if c.reads_ahead:
        ahead = c.setting if any(reads_ahead(run) for run, _ in c.pairs) else c.baseline
        weight = _middle(ahead.numbers("attn/future_mass"))
        both = f"the loss of {name}, {losses[0]:.3f} nats against {losses[1]:.3f} of {other},"
        return (
            f"{ahead.label} reads the future (weight {weight:.2g} on later positions), so {both} "
            f"does not compare predictions ({'medians of ' * (n > 1)}{seeds})"
        )
    if len(c.finite) < n:
        return _divergence(c)
    middle, low, high = c.interval
    if max(map(abs, c.differences)) < EQUAL:
        most = max(map(abs, c.differences))
        size = "exactly" if not most else f"to within {at_most(most)} nats"
        return f"{name} ends with the loss of {other}, {size} ({seeds})"
    way, count = ("worse", c.worse) if middle > 0 else ("better", c.better)
    text = f"{name} ends {_than(middle)} {other}"
    if n == 1:
        return f"{text} with the same seed (one seed)"
    spread = "" if math.isnan(low) else f", 95 % interval {low:+.3f} to {high:+.3f}"
    return f"{text} (median of {n} seeds{spread}; {way} in {count} of {n})"


def at_most(size: float) -> str:
    """A positive number, rounded up to one digit, as in 3e-06."""
    unit = 10.0 ** math.floor(math.log10(size))
    return f"{math.ceil(size / unit - 1e-6) * unit:.0e}"


def _than(difference: float) -> str:
    """A difference of losses in words, which the name of the other setting follows."""
    if abs(difference) < 5e-5:  # four digits do not show it
        return "about as well as"
    size = f"{abs(difference):.{3 if abs(difference) >= 0.01 else 4}f} nats"
    return f"{size} {'worse' if difference > 0 else 'better'} than"


def attention(comparison: Comparison) -> str:
    """What the attention did, by the measures at the end of the runs; empty without measures."""
    c, sentences = comparison, []
    if c.baseline is None:
        return ""
    alike, of_other = (_middle(s.numbers("attn/head_similarity")) for s in (c.setting, c.baseline))
    if alike > EQUAL_HEADS:
        beside = f"; {c.baseline.label} {of_other:.3f}" if not math.isnan(of_other) else ""
        sentences.append(f"All its heads attend alike (similarity {alike:.3f}{beside}).")
    entropy, other = (_middle(s.numbers("attn/entropy")) for s in (c.setting, c.baseline))
    if not math.isnan(entropy + other):
        how = "Its queries spread their weight about as widely"
        if entropy * SPREAD < other:
            how = "Each query spreads little of its weight"
        elif entropy > other * SPREAD:
            how = "Each query spreads more of its weight"
        of_baseline = f"{c.baseline.label} {other:.2f}"
        sentences.append(f"{how} (entropy {entropy:.2f}; {of_baseline}; 1 is even).")
    return " ".join(sentences)


def verdict(comparison: Comparison) -> str:
    """What counting seeds decides, where there are enough of them; otherwise empty."""
    c, (found, judged) = comparison, comparison.decision
    if c.baseline is None or not judged:
        return ""
    differences = c.differences[:judged]
    worse, better = sum(x > 0 for x in differences), sum(x < 0 for x in differences)
    seeds = f"{'the first ' * (judged < len(c.pairs))}{judged} seeds"
    counts = (
        f"{worse} worse and {better} better of {seeds}, {dict(LOOKS)[judged]} of {judged} decide"
    )
    if found == "open":
        return f"{c.setting.label}: counting does not decide ({counts})."
    return f"{c.setting.label} is {found} than {c.baseline.label} in most seeds ({counts})."


def too_few(comparisons: Sequence[Comparison]) -> str:
    """Says that there are too few seeds, and the command for ten; empty if there are enough."""
    few = [c for c in comparisons if 0 < len(c.pairs) < LOOKS[0][0] and not c.reads_ahead]
    undecided = [c for c in few if any(abs(x) >= EQUAL for x in c.differences)]
    if not undecided:
        return ""
    most = max(len(c.pairs) for c in undecided)
    runs = [s.first for c in undecided for s in (c.baseline, c.setting) if s is not None]
    commands = [f"  {command}" for command in ten_seeds(runs)]
    number = "One seed" if most == 1 else f"{most} seeds"
    named = "the commands for ten are" if commands[1:] else "the command for ten is"
    return "\n".join([f"{number} cannot decide; {named}", *commands])


def ten_seeds(runs: Sequence[Run]) -> list[str]:
    """The commands that train settings, of which one run each is passed, with ten seeds. Settings
    that differ in one value become one sweep, so all combinations of values take one command."""
    apart = {"attn", "seed", *settings_with("once")}
    typed = {key: text for run in runs for key, text in run.typed.items() if key not in apart}
    keys = {"attn": "attn", **{key: text.partition("=")[0] for key, text in typed.items()}}
    sweeps: list[dict[str, list[str]]] = []  # key -> its values
    for run in runs:
        sweep = {key: [text] for key in keys if (text := _value(run, key)) is not None}
        if sweep not in sweeps:
            sweeps.append(sweep)
    for key in keys:
        joined: list[dict[str, list[str]]] = []
        for sweep in sweeps:
            like = [x for x in joined if x | {key: sweep.get(key)} == sweep]
            if like and not any("," in text for text in (*like[0][key], *sweep[key])):
                like[0][key] = like[0][key] + sweep[key]
            else:
                joined.append(sweep)
        sweeps = joined
    return [_command([f"{keys[key]}={','.join(x)}" for key, x in s.items()]) for s in sweeps]


def _value(run: Run, key: str) -> str | None:
    """A setting of a run as one types it, also if it was not typed; None for a text or a list that
    was not typed, and for a setting that the run does not have."""
    if key == "attn":
        return run.typed.get(key, run.variant).removeprefix("attn=")
    if key in run.typed:
        return run.typed[key].partition("=")[2]
    value = run.config.get(key, "")
    return None if isinstance(value, str | list | dict) else json.dumps(value)


def _command(words: Sequence[str]) -> str:
    return f"{training_command()} -m {shlex.join([*words, 'seed=range(10)'])}"


def _training(c: Comparison) -> str:
    """What became of a training that ended clearly worse, against guessing all symbols alike."""
    middle, symbols = c.interval[0], c.setting.first.metrics.get("symbols")
    if c.reads_ahead or len(c.finite) < len(c.pairs) or middle < SLOWER or not symbols:
        return ""
    loss, other = (_middle([pair[i].loss for pair in c.pairs]) for i in (0, 1))
    learned = (math.log(symbols) - loss) / max(math.log(symbols) - other, 1e-9)
    if learned < 0.1:
        return f": it learned almost nothing (a guess costs {math.log(symbols):.2f} nats)"
    return ": training slowed, it did not fail" if learned > 0.5 else ": it learned little"


def _stopped(c: Comparison) -> str:
    """Which runs were stopped before their last step."""
    stopped = {run.folder: run for pair in c.pairs for run in pair if run.status == "stopped"}
    for run in stopped.values():
        at = f"step {run.step} of {run.config.get('trainer.max_steps')}"
        if len(stopped) > 1:
            return f"{len(stopped)} runs were stopped early, one of them at {at}."
        return f"{run.variant} with seed {run.seed} was stopped at {at}."
    return ""


def _precisions(c: Comparison) -> str:
    """Which runs of one setting had different precisions: `auto` is another one on a GPU."""
    found = {
        tuple(str(run.metrics.get("precision")) for run in pair)
        for pair in c.pairs
        if len({run.config.get("trainer.precision") for run in pair}) == 1
    }
    apart = sorted({f"{mine} beside {other}" for mine, other in found if mine != other})
    return f"The precisions differ: {', '.join(apart)}." if apart else ""


def _divergence(c: Comparison) -> str:
    assert c.baseline is not None
    n, others, clauses = len(c.pairs), [], []
    for i, setting in enumerate((c.setting, c.baseline)):
        diverged = [pair[i] for pair in c.pairs if pair[i].status == "diverged"]
        steps = sorted(run.step for run in diverged)
        if diverged:
            at = f"at step {steps[0]}" + (f" to {steps[-1]}" if steps[0] < steps[-1] else "")
            seeds = "(one seed)" if n == 1 else f"in {len(diverged)} of {n} seeds"
            clauses.append(f"{setting.label} diverged {at} {seeds}")
        else:
            losses = [pair[i].loss for pair in c.pairs]
            others.append(f"{setting.label} ended at {_middle(losses):.3f} nats")
    if c.finite:
        apart = f"{c.setting.label} ends {_than(median(c.finite))} {c.baseline.label}"
        others.append(f"where neither diverged, {apart}")
    return "; ".join([*clauses, *others])


def _middle(values: Sequence[float]) -> float:
    """The median of what is a number; NaN if nothing is."""
    numbers = [x for x in values if not math.isnan(x)]
    return median(numbers) if numbers else math.nan
