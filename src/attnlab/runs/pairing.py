"""Groups runs that differ only in their seed, and pairs them with a baseline."""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnlab.errors import BadInput
from attnlab.runs.labels import in_words, label_settings
from attnlab.runs.reading import Run
from attnlab.runs.run_directory import variant_of
from attnlab.runs.seed_statistics import LOOKS, Answer, count, median_interval

TEXT = "corpus.sha256"  # a metric, because the content of a file is no setting
READS_AHEAD = 1e-3  # weight on later positions; with more, the validation loss means nothing


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in their seed, in the order of their seeds."""

    runs: tuple[Run, ...]
    label: str = ""  # the settings in which it differs from the others that are shown

    @property
    def first(self) -> Run:
        return self.runs[0]

    def numbers(self, key: str) -> list[float]:
        """The numbers of a key over the seeds; of runs that did not diverge, if there are any."""
        steady = [run for run in self.runs if run.status != "diverged"]
        values = [run.values.get(key) for run in steady]
        if not any(run.has_result for run in steady):
            values = [run.values.get(key) for run in self.runs]
        return [float(x) for x in values if isinstance(x, int | float) and not isinstance(x, bool)]

    def mean(self, key: str) -> float | None:
        """The mean over the seeds; None if no run has a number."""
        numbers = self.numbers(key)
        add = math.fsum if all(map(math.isfinite, numbers)) else sum  # fsum refuses inf - inf
        return add(numbers) / len(numbers) if numbers else None

    def sd(self, key: str) -> float | None:
        """The sample standard deviation (n - 1); None for fewer than two numbers."""
        numbers = self.numbers(key)
        if len(numbers) < 2:
            return None
        return statistics.stdev(numbers) if all(map(math.isfinite, numbers)) else math.nan

    @property
    def milliseconds(self) -> float | None:
        """The mean time of a training step; None without a result."""
        rates = [run.metrics for run in self.runs if run.has_result and run.metrics["steps"]]
        times = [
            1000 * m["tokens"] / m["steps"] / m["tokens_per_second"]
            for m in rates
            if isinstance(m.get("tokens"), int) and m["tokens_per_second"] > 0
        ]
        return statistics.fmean(times) if times else None


@dataclass(frozen=True)
class Comparison:
    """A setting beside the baseline of its other settings, paired by seed."""

    setting: Setting
    baseline: Setting | None = None
    why: str = ""  # why there are no pairs
    pairs: tuple[tuple[Run, Run], ...] = field(default=(), repr=False)  # (run, the baseline's)

    @property
    def is_baseline(self) -> bool:
        return self.baseline is not None and self.baseline.runs is self.setting.runs

    def has(self, run: Run) -> bool:
        """Whether a run is in a pair, on either side."""
        return any(run.folder in (mine.folder, other.folder) for mine, other in self.pairs)

    @property
    def seeds(self) -> list[Any]:
        return [run.seed for run, _ in self.pairs]

    @property
    def differences(self) -> list[float]:
        """Validation loss minus the baseline's, in nats, by seed. Infinite if only the run
        diverged, minus infinite if only the baseline did, NaN if both did."""
        return [run.loss - other.loss for run, other in self.pairs]

    @property
    def finite(self) -> list[float]:
        """The differences of the seeds at which neither run diverged."""
        return [x for x in self.differences if math.isfinite(x)]

    @property
    def interval(self) -> tuple[float, float, float]:
        """The median difference with its exact 95 % interval; NaN for what is undefined."""
        signed = [x for x in self.differences if not math.isnan(x)]
        return median_interval(signed) if signed else (math.nan, math.nan, math.nan)

    @property
    def better(self) -> int:
        """At how many seeds the loss is lower than the baseline's, or only that diverged."""
        return sum(x < 0 for x in self.differences)

    @property
    def worse(self) -> int:
        """At how many seeds the loss is higher, or only this run diverged."""
        return sum(x > 0 for x in self.differences)

    @property
    def reads_ahead(self) -> bool:
        """Whether a model puts weight on the future, as far as probes measured it. Then the
        difference says nothing about prediction."""
        return any(reads_ahead(run) for pair in self.pairs for run in pair)

    @property
    def decision(self) -> tuple[Literal["better", "worse", "open"], int]:
        """The verdict by counting, 10 of 10 seeds, 17 of 20 or 31 of 40, and the number of seeds
        that it is based on."""
        sizes = [n for n, _ in LOOKS if n <= len(self.pairs)]
        if not sizes or self.reads_ahead:
            return "open", 0
        answers: list[Answer] = [
            "yes" if x > 0 else "below" if x < 0 else "neither" for x in self.differences
        ]
        verdict, judged, _ = count(answers, sizes[-1])
        if verdict == "open":
            return "open", judged
        return ("worse" if verdict == "confirmed" else "better"), judged


def reads_ahead(run: Run) -> bool:
    """Whether a run's model puts weight on later positions."""
    mass = run.metrics.get("attn/future_mass", 0.0)
    return isinstance(mass, int | float) and mass > READS_AHEAD


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Group runs that differ only in their seed, and label the groups. Runs of the same settings
    and the same seed are told apart by their directories, and runs of a text file that has changed
    between them by its content."""
    groups: dict[str, list[Run]] = {}
    for run in {run.folder: run for run in runs}.values():
        key = str(run.folder)
        if run.status != "damaged":
            key = json.dumps([run.variant, run.attention, run.rest], sort_keys=True)
        groups.setdefault(key, []).append(run)
    split: list[tuple[Run, ...]] = []
    for members in groups.values():
        parts: dict[tuple[Path | None, str | None], list[Run]] = {}
        repeats = len({run.seed for run in members}) < len(members)
        texts = {run.metrics.get(TEXT) for run in members if run.has_result}
        for run in members:
            text = run.metrics.get(TEXT) if len(texts) > 1 else None
            parts.setdefault((run.place if repeats else None, text), []).append(run)
        for part in parts.values():
            if len({run.seed for run in part}) < len(part):
                split += [(run,) for run in part]
            else:
                split.append(tuple(sorted(part, key=lambda x: (str(type(x.seed)), x.seed))))
    names = label_settings([part[0] for part in split])
    return [Setting(part, name) for part, name in zip(split, names, strict=True)]


def labels(runs: Sequence[Run]) -> dict[Path, str]:
    """The label of each run's setting, by its directory."""
    return {run.folder: setting.label for setting in settings(runs) for run in setting.runs}


def pairs(
    runs: Sequence[Run], baseline: str | None = None, apart: Collection[str] = ()
) -> list[Comparison]:
    """Compare each setting with its baseline, the setting that differs in its attention alone.

    The baseline is the unchanged variant that the task names, such as sdpa, or what the user
    names: a variant or settings, as in "unscaled", "attn=sdpa,scale=0.3" or "n_head=1". What is
    named may differ, as may the settings `apart`, and everything else is equal. Settings that
    differ only in their attention follow each other, the baseline first. Raises BadInput if no run
    has what the user names.
    """
    shown = settings(runs)
    chosen, tasks = baseline is not None, [s.first.metrics.get("baseline") for s in shown]
    usual = Counter(x for x in tasks if x).most_common(1)  # that most tasks name
    default = {"attn": str(usual[0][0]) if usual else "sdpa"}
    named = default if baseline is None else _named(baseline, shown)
    compared = [_with_baseline(s, shown, named, apart, chosen=chosen) for s in shown]
    sections = list(dict.fromkeys(_section(c) for c in compared))
    return sorted(compared, key=lambda c: (sections.index(_section(c)), not c.is_baseline))


def _section(comparison: Comparison) -> str:
    of = comparison.baseline or comparison.setting
    return json.dumps([of.first.status == "damaged", of.first.rest], sort_keys=True)


def _named(text: str, shown: Sequence[Setting]) -> dict[str, str]:
    """What the user names as the baseline, as full keys with values."""
    runs = [setting.first for setting in shown]
    named: dict[str, str] = {}
    for word in re.split(r"[ ,]+", text.strip()):
        name, sign, value = word.partition("=")
        if not sign or name == "attn":
            named["attn"] = variant_of(value or name)
            continue
        named[full_key(name, runs)] = value
    if not any(_has(setting.first, named) for setting in shown):
        labels = ", ".join(setting.label for setting in shown[:8])
        raise BadInput(f"--baseline {text} matches none of these settings: {labels}")
    return named


def full_key(name: str, runs: Sequence[Run]) -> str:
    """The dotted key of a setting that may be named by its last part, as in lr for optim.lr.

    Raises BadInput if no setting of the runs, or several, have that name.
    """
    keys = {key for run in runs for key in (*run.attention, *run.rest)}
    matching = [name] if name in keys else sorted(k for k in keys if k.endswith(f".{name}"))
    if len(matching) != 1:
        advice = f"; write {' or '.join(matching)}" if matching else ""
        raise BadInput(f"{name} is not a setting of these runs{advice}")
    return matching[0]


def _has(run: Run, named: dict[str, str]) -> bool:
    """Whether a run has what the user names."""
    values = {"attn": run.variant} | run.attention | run.rest
    return all(text in _texts(values.get(key)) for key, text in named.items())


def _texts(value: Any) -> set[str]:
    """How a value may be typed."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {in_words(value), str(value), *([f"{value:g}", str(float(value))] if number else [])}


def _with_baseline(
    setting: Setting,
    shown: Sequence[Setting],
    named: dict[str, str],
    apart: Collection[str],
    *,
    chosen: bool,
) -> Comparison:
    """A setting with its baseline, which the user may have `chosen`, and the pairs of both."""
    first, attention = setting.first, any(key.split(".")[0] == "attn" for key in named)
    if first.status == "damaged":
        return Comparison(setting, why=f"damaged: {first.reason}")

    def fixed(run: Run) -> dict[str, Any]:
        kept = run.rest if attention else run.rest | run.attention | {"attn": run.variant}
        return {key: x for key, x in kept.items() if key not in named and key not in apart}

    sound = [s for s in shown if s.first.status != "damaged"]
    like = [s for s in sound if _has(s.first, named) and fixed(s.first) == fixed(first)]
    plain = [s for s in like if s.first.is_plain] if [*named] == ["attn"] else like
    like = plain if plain or not chosen else like
    like = [s for s in like if s is setting] or like
    like = [s for s in like if s.first.place == first.place] or like
    like = [s for s in like if s.first.metrics.get(TEXT) == first.metrics.get(TEXT)] or like
    words = " ".join(key + "=" + value for key, value in named.items())
    if len(like) != 1:
        why = f"several settings are the baseline {words}: {', '.join(s.label for s in like)}"
        return Comparison(
            setting, why=why if like else f"no run of {words} has its other settings"
        )
    (baseline,) = like
    if baseline is setting:
        return Comparison(setting, setting)
    of_seed = {run.seed: run for run in baseline.runs if run.has_result}
    ended = [run for run in setting.runs if run.has_result and run.seed in of_seed]
    paired = tuple(
        (run, other)
        for run in ended
        if run.metrics.get(TEXT) == (other := of_seed[run.seed]).metrics.get(TEXT)
    )
    why = "" if paired else "trained on another text" if ended else "no seed of both has ended"
    return Comparison(setting, baseline, why, paired)
