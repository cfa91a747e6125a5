"""Chooses the best value of a setting, such as the learning rate, for each variant."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from attnlab.errors import BadInput
from attnlab.runs.pairing import Comparison, full_key, pairs
from attnlab.runs.reading import Run

FOLLOWS = {"optim.lr": "optim.min_lr"}  # a setting that may change with another one


@dataclass(frozen=True)
class Choice:
    """The value of a setting, such as a learning rate, that has the lowest loss."""

    rate: float
    losses: Mapping[float, float]  # rate -> mean validation loss over the selection seeds
    at_edge: bool  # no larger, or no smaller, rate was tried


@dataclass(frozen=True)
class BestRuns:
    """Settings, each at the best value of `key`, compared with their baselines."""

    key: str
    selection: Sequence[Any]  # the seeds by which values were chosen
    seeds: Sequence[Any]  # those of the comparison: others, if all settings have some
    comparisons: Sequence[Comparison]
    choices: Sequence[Choice]  # one for each comparison

    def rows(self) -> list[dict[str, Any]]:
        """For each comparison, what was chosen, as plain values."""
        return [
            {self.key: c.rate, "tried": dict(c.losses), "at_edge": c.at_edge}
            | {"selection_seeds": list(self.selection)}
            for c in self.choices
        ]

    def __str__(self) -> str:
        same, one = list(self.seeds) == list(self.selection), len(self.selection) == 1
        chosen = f"{'loss of' if one else 'mean loss over'} {_listed(self.selection)}"
        fresh = f"the same seed{'' if one else 's'}" if same else _listed(self.seeds)
        lines = [
            f"Each setting has its best {self.key}, by the {chosen}, and is compared on {fresh}."
        ]
        for comparison, choice in zip(self.comparisons, self.choices, strict=True):
            tried = ", ".join(f"{rate:g} ({loss:.4f})" for rate, loss in choice.losses.items())
            edge = "; the best one is at the edge; try values beyond it" if choice.at_edge else ""
            lines.append(f"{comparison.setting.label}: {choice.rate:g} of {tried}{edge}")
        return "\n".join(lines)


def best_rate(tried: Mapping[float, Mapping[Any, float]], seeds: Collection[Any]) -> Choice:
    """The rate with the lowest mean loss over some seeds, of rates that have all of them.

    Takes rate -> seed -> loss.
    """
    means = {
        rate: fmean(losses[seed] for seed in seeds)
        for rate, losses in sorted(tried.items())
        if losses.keys() >= set(seeds)
    }
    rate = min(means, key=lambda rate: means[rate])
    return Choice(rate, means, at_edge=rate in (min(means), max(means)))


def compare_at_best(runs: Sequence[Run], name: str, baseline: str | None = None) -> BestRuns:
    """Compare settings with their baselines, each at its best value of a numeric setting.

    The value is chosen on the seeds that all settings have at all values. If the chosen ones have
    further seeds, these are compared, since losses by which a value was chosen are too low.
    Raises BadInput if `name` is no numeric setting, or has only one value or no common seed.
    """
    ended = [run for run in runs if run.has_result]
    key = full_key(name, ended)
    apart = {key, FOLLOWS.get(key, key)}
    groups: dict[str, dict[float, dict[Any, Run]]] = {}
    for run in ended:
        if not isinstance(value := run.rest.get(key), int | float) or isinstance(value, bool):
            raise BadInput(f"--best {name}: {key} = {value} in {run.folder} is not a number")
        fixed = {k: x for k, x in run.rest.items() if k not in apart}
        group = json.dumps([run.variant, run.attention, fixed], sort_keys=True)
        of_seed = groups.setdefault(group, {}).setdefault(float(value), {})
        if run.seed in of_seed:
            twice = f"{of_seed[run.seed].folder} and {run.folder}"
            raise BadInput(f"--best {name}: {twice} have the same {key} and seed; name one")
        of_seed[run.seed] = run
    for by_value in groups.values():
        if len(by_value) < 2:
            one = next(iter(next(iter(by_value.values())).values()))
            raise BadInput(f"--best {name}: {one.folder.parent} has only one {key}; train others")
    all_seeds = [set(of_seed) for by_value in groups.values() for of_seed in by_value.values()]
    if not (selection := set.intersection(*all_seeds)):
        raise BadInput(f"--best {name}: no seed was run at every {key}")
    chosen = {
        group: best_rate(
            {value: {seed: run.loss for seed, run in of_seed.items()}
             for value, of_seed in by_value.items()},
            selection,
        )
        for group, by_value in groups.items()
    }  # fmt: skip
    best = {group: groups[group][choice.rate] for group, choice in chosen.items()}
    seeds = set.intersection(*(of_seed.keys() - selection for of_seed in best.values()))
    seeds = seeds or selection
    kept = {
        of_seed[seed].folder: chosen[group] for group, of_seed in best.items() for seed in seeds
    }
    compared = pairs([run for run in ended if run.folder in kept], baseline, apart)
    choices = [kept[comparison.setting.first.folder] for comparison in compared]
    return BestRuns(key, sorted(selection), sorted(seeds), compared, choices)


def _listed(seeds: Sequence[Any]) -> str:
    """Seeds in a sentence: seed 0, seeds 0, 1, 2 or seeds 3 to 12."""
    if len(seeds) > 3 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
