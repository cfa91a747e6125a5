"""Chooses the best value of a numeric setting, such as the learning rate, for each setting."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from attnlab.errors import BadInput
from attnlab.runs.compare import full_key, settings_in
from attnlab.runs.frame import ENDED
from attnlab.runs.groups import Group, groups_of, labels, seeds_in_words

CHANGES_WITH = {"optim.lr": "optim.min_lr"}  # setting -> another that may change with it


@dataclass(frozen=True)
class Grid:
    """The losses of one variant at each value of the setting."""

    label: str
    losses: pd.DataFrame  # a row a seed, a column a value, in ascending order
    means: pd.Series  # by value, over the seeds that all variants have at all values
    best: float

    @property
    def is_at_edge(self) -> bool:
        """Whether the best value is the first or the last one: one beyond may be better."""
        return self.best in (self.means.index[0], self.means.index[-1])


@dataclass(frozen=True)
class Best:
    """What was chosen, by which seeds, and the runs that are therefore compared."""

    key: str
    grids: Sequence[Grid]  # one for each variant
    chosen_by: Sequence[int]  # seeds
    compared_on: Sequence[int]  # seeds
    runs: pd.DataFrame
    may_differ: tuple[str, ...]  # settings that differ from the baseline's by this choice

    def sentences(self) -> list[str]:
        """What was chosen and on which seeds it is compared; then, for each variant, the mean loss
        at each value."""
        same = [*self.chosen_by] == [*self.compared_on]
        said = [
            f"Each setting has its best {self.key}, by the mean loss over "
            f"{seeds_in_words(self.chosen_by)}, and is compared on "
            f"{'the same' if same else seeds_in_words(self.compared_on)}."
        ]
        for grid in self.grids:
            means = ", ".join(f"{x:g} ({loss:.4f})" for x, loss in grid.means.items())
            line = f"{grid.label}: {grid.best:g} of {means}"
            if grid.is_at_edge:
                line += "; the best one is at the edge: try values beyond it"
            said.append(line)
        return said


def at_best(frame: pd.DataFrame, name: str) -> Best:
    """The runs of each setting at its best value of a numeric setting, which `name` names in full
    or by its last part.

    The value has the lowest mean loss over the seeds that all settings have at all values. The
    runs are those of other seeds, if all settings have some, since losses by which a value was
    chosen are too low. BadInput if a setting has only one value, if it has one value twice, or if
    no seed was run at every value.
    """
    groups = groups_of(frame[frame["status"].isin(ENDED)])
    key = full_key(name, settings_in(groups))
    may_differ = (key, CHANGES_WITH.get(key, key))
    by_value = groups_by_value(groups, key, may_differ, name)

    loss_of: dict[tuple[str, float], pd.Series] = {}
    for family, groups_of_family in by_value.items():
        for value, group in groups_of_family.items():
            loss_of[family, value] = group.runs.set_index("seed")["loss"]
    losses = pd.DataFrame(loss_of)  # a row for each seed
    seeds = losses.index[losses.notna().all(axis=1)].tolist()
    if not seeds:
        raise BadInput(f"--best {name}: no seed was run at every {key}")
    means = losses.loc[seeds].mean()
    best = {family: float(means[family].idxmin()) for family in by_value}
    # A column is (family, value).
    has_all_winners = losses[list(best.items())].notna().all(axis=1)
    others = [seed for seed in losses.index[has_all_winners] if seed not in seeds]

    winners = [by_value[family][value] for family, value in best.items()]
    names = labels([group.naming_run for group in winners])
    grids = []
    for label, (family, value) in zip(names, best.items(), strict=True):
        if len(means[family]) < 2:
            raise BadInput(f"--best {name}: {label} has only one {key}; train others")
        of_family = losses[family].sort_index(axis=1)
        grids.append(Grid(label, of_family, means[family].sort_index(), value))

    # With the repeats of their seeds, which a comparison names.
    of_winners = pd.concat([group.all_runs for group in winners])
    is_compared = of_winners["seed"].isin(others or seeds)
    chosen = frame.loc[sorted(of_winners.index[is_compared])]
    return Best(key, grids, seeds, others or seeds, chosen, may_differ)


def groups_by_value(
    groups: Sequence[Group], key: str, may_differ: Sequence[str], name: str
) -> dict[str, dict[float, Group]]:
    """Groups by all their settings except those that may differ (as JSON), then by their value of
    the setting `key`. BadInput, in which the setting is called `name`, for a value that is no
    number, or that two groups of equal settings have."""
    found: dict[str, dict[float, Group]] = {}
    for group in groups:
        value = group.settings.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            folder = group.first["folder"]
            raise BadInput(f"--best {name}: {key} of {folder} is not a number")
        common = {x: y for x, y in group.settings.items() if x not in may_differ}
        of_family = found.setdefault(json.dumps(common, sort_keys=True), {})
        if value in of_family:
            two = f"{of_family[value].first['folder']} and {group.first['folder']}"
            raise BadInput(f"--best {name}: {two} have the same {key}; name one of them")
        of_family[float(value)] = group
    return found
