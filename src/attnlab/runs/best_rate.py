"""Chooses the best value of a numeric setting, such as the learning rate, for each setting."""

import json
from collections.abc import Sequence

import pandas as pd

from attnlab.errors import BadInput
from attnlab.runs.compare import full_key, settings_in
from attnlab.runs.frame import ENDED
from attnlab.runs.groups import Group, groups_of, labels, seeds_in_words

FOLLOWS = {"optim.lr": "optim.min_lr"}  # a setting that may change with another one


def at_best(frame: pd.DataFrame, name: str) -> tuple[pd.DataFrame, tuple[str, ...], str]:
    """The runs of each setting at its best value of a numeric setting, what may therefore differ
    from the baseline, and what was chosen, in words.

    The value has the lowest mean loss over the seeds that all settings have at all values. The
    runs are those of other seeds, if all settings have some, since losses by which a value was
    chosen are too low. BadInput if a setting has only one value, if it has one value twice, or if
    no seed was run at every value.
    """
    groups = groups_of(frame[frame["status"].isin(ENDED)])
    key = full_key(name, settings_in(groups))
    may_differ = (key, FOLLOWS.get(key, key))
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
    best = {family: means[family].idxmin() for family in by_value}
    # A column is (family, value).
    has_all_winners = losses[list(best.items())].notna().all(axis=1)
    others = [seed for seed in losses.index[has_all_winners] if seed not in seeds]

    said = [
        f"Each setting has its best {key}, by the mean loss over {seeds_in_words(seeds)}, and is "
        f"compared on {seeds_in_words(others) if others else 'the same'}."
    ]
    winners = [by_value[family][value] for family, value in best.items()]
    names = labels([group.named_by for group in winners])
    for label, (family, value) in zip(names, best.items(), strict=True):
        tried = means[family].sort_index()
        if len(tried) < 2:
            raise BadInput(f"--best {name}: {label} has only one {key}; train others")
        all_means = ", ".join(f"{x:g} ({loss:.4f})" for x, loss in tried.items())
        line = f"{label}: {value:g} of {all_means}"
        if value in (tried.index.min(), tried.index.max()):
            line += "; the best one is at the edge: try values beyond it"
        said.append(line)

    # With the repeats of their seeds, which a comparison names.
    of_winners = pd.concat([group.all_runs for group in winners])
    is_compared = of_winners["seed"].isin(others or seeds)
    chosen = frame.loc[sorted(of_winners.index[is_compared])]
    return chosen, may_differ, "\n".join(said)


def groups_by_value(
    groups: Sequence[Group], key: str, may_differ: Sequence[str], name: str
) -> dict[str, dict[float, Group]]:
    """Groups by what they have in common, then by their value of a setting. BadInput for a value
    that is no number, or that two groups have."""
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
