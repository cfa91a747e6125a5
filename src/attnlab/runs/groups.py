"""Groups of runs that differ only in their seed, each with a label; one seed counts once."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from attnlab.runs.frame import ENDED
from attnlab.settings.roles import LAYER, Settings, is_below, last_of

RunRow = Mapping[str, Any]  # a row of `read_runs`


@dataclass(frozen=True, eq=False)
class Group:
    """Runs with equal settings, one for each seed, wherever and however often that was run."""

    label: str  # the settings in which it differs from the other groups
    runs: pd.DataFrame  # in the order of the seeds
    repeats: pd.DataFrame  # further runs of these seeds, which do not count

    @cached_property
    def first(self) -> RunRow:
        """The run of its first seed."""
        run: RunRow = self.runs.iloc[0]
        return run

    @cached_property
    def all_runs(self) -> pd.DataFrame:
        """Its runs, and after them the repeats."""
        return pd.concat([self.runs, self.repeats])

    @property
    def is_damaged(self) -> bool:
        """Whether its run cannot be read or has a wrong result; such a run is a group alone."""
        return bool(self.first["status"] == "damaged")

    @cached_property
    def settings(self) -> Settings:
        """All that can change the result, except the seed, under dotted keys."""
        return settings_of(self.first)

    @cached_property
    def naming_run(self) -> RunRow:
        """The run whose overrides name the group: with the fewest about attention, if they
        differ."""
        return naming_run_of(self.all_runs)

    @cached_property
    def overrides(self) -> dict[str, str]:
        """The overrides of its naming run as typed, by key: {"attn": "attn=unscaled"}."""
        return overrides_of(self.naming_run)

    @property
    def has_command(self) -> bool:
        """Whether attnlab trained it, so that a command trains further seeds."""
        return self.naming_run["overrides"] is not None

    @property
    def config_dirs(self) -> str:
        """The directories of the user's own settings, quoted for the shell, with spaces between
        them."""
        return str(self.naming_run["config_dirs"])

    @property
    def variant(self) -> str:
        """The name of its attention: of a variant of conf/attn, or of a class."""
        return str(self.naming_run["attn"])

    @property
    def choice(self) -> str:
        """The choice of conf/attn in its command, such as sdpa, even if overrides change its
        class."""
        return str(self.naming_run["variant"])

    @cached_property
    def variants(self) -> set[str]:
        """All names under which its runs were trained: equal settings may have several."""
        return {*self.all_runs["attn"]}

    @cached_property
    def unchanged_variants(self) -> set[str]:
        """The names under which one of its runs was trained without a change of attn's settings:
        {"unscaled"}, also if another run has typed attn=sdpa attn.scale=1."""
        return {run["attn"] for _, run in self.all_runs.iterrows() if not attention_overrides(run)}

    @cached_property
    def folders(self) -> set[str]:
        """The directories of all its runs."""
        return {*self.all_runs["folder"]}

    @cached_property
    def sweeps(self) -> set[Path]:
        """The directories `<outputs>/<name>` of all its runs."""
        return {sweep_of(folder) for folder in self.folders}


def groups_of(frame: pd.DataFrame) -> list[Group]:
    """The groups of a frame of runs. Runs with equal settings are one group, and a damaged run is
    a group of its own. Of several runs of a seed, `split_by_seed` chooses the one that counts."""
    # One seed may have been run in several sweeps. The larger one is more likely to have the
    # baseline as well, trained on the same machine.
    sizes = frame["folder"].map(sweep_of).value_counts()
    key = frame["folder"]
    if "settings" in frame:
        key = frame["settings"].where(frame["status"] != "damaged", frame["folder"])
    parts = [split_by_seed(runs, sizes) for _, runs in frame.groupby(key, sort=False)]
    names = labels([naming_run_of(pd.concat(both)) for both in parts])
    return [Group(name, runs, repeats) for name, (runs, repeats) in zip(names, parts, strict=True)]


def split_by_seed(runs: pd.DataFrame, sizes: pd.Series) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The run that counts for each seed, and the repeats: one with a result counts rather than one
    without, then one of the sweep with more runs (`sizes`: sweep -> number of runs), then the
    first one of the frame."""
    if "seed" not in runs:  # damaged
        return runs, runs.iloc[:0]
    ranks = pd.DataFrame(
        {
            "without_result": ~runs["status"].isin(ENDED),
            "smaller_sweep": -runs["folder"].map(sweep_of).map(sizes),
        }
    )
    ranked = runs.loc[ranks.sort_values([*ranks], kind="stable").index]
    is_repeat = ranked["seed"].duplicated()
    return ranked[~is_repeat].sort_values("seed"), ranked[is_repeat].sort_values("seed")


def naming_run_of(runs: pd.DataFrame) -> RunRow:
    """The run with the fewest overrides about attention: attn=unscaled rather than attn=sdpa
    attn.scale=1, which is the same setting."""
    every = [run for _, run in runs.iterrows()]
    if len(every) == 1:  # also if it is damaged, and so has no overrides
        return every[0]
    return min(every, key=lambda run: len(attention_overrides(run)))


def sweep_of(folder: str | Path) -> Path:
    """The directory `<outputs>/<name>` of a run directory `<outputs>/<name>/attn=.../seed=...`."""
    return Path(folder).parent.parent


def settings_of(run: RunRow) -> Settings:
    """All that can change the result of a run, except the seed, under dotted keys."""
    settings: Settings = json.loads(run["settings"])
    return settings


def overrides_of(run: RunRow) -> dict[str, str]:
    """The overrides of a run as typed, by key; none of a run that attnlab did not train."""
    typed = run["overrides"]
    return {} if typed is None else last_of(shlex.split(typed))


def attention_overrides(run: RunRow) -> list[str]:
    """The keys of the settings of its variant that a run changes, such as attn.scale."""
    return [key for key in overrides_of(run) if key.startswith("attn.")]


class _Named(NamedTuple):
    """What a label of a run is made from; nothing for a damaged run."""

    variant: str
    settings: Settings
    overrides: dict[str, str]


def labels(runs: Sequence[RunRow]) -> list[str]:
    """A unique label for each run: its variant, or the class of its own layer, and the overrides
    in which the runs differ, such as "unscaled n_head=4". For a damaged run and for equal
    overrides, the directory."""
    named: list[_Named | None] = []
    for run in runs:
        if run["status"] == "damaged":
            named.append(None)
        else:
            named.append(_Named(run["attn"], settings_of(run), overrides_of(run)))
    sound = [each for each in named if each is not None]
    typed: dict[str, None] = {}  # a set in order, of keys
    for sound_run in sound:
        typed |= dict.fromkeys(sound_run.overrides)
    differing = []  # keys whose values tell the runs apart
    for key in typed:
        if not is_left_out(key) and len({value_in_label(run, key) for run in sound}) > 1:
            differing.append(key)
    short = short_names(differing)
    chosen = []
    for each in named:
        words = []
        if each is not None:
            words.append(each.variant)
            for key in differing:
                value = value_in_label(each, key)
                if key != LAYER and value is not None:
                    words.append(f"{short[key]}={value}")
        chosen.append(" ".join(words))
    above = os.path.commonpath([run["folder"] for run in runs])
    unique = []
    for label, run in zip(chosen, runs, strict=True):
        if not label or chosen.count(label) > 1:
            label = f"{label} ({os.path.relpath(run['folder'], above)})".strip()
        unique.append(label)
    return unique


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Dotted keys by their last part, as lr for optim.lr, where no other key has the same."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def is_left_out(key: str) -> bool:
    """Whether labels leave an override out: of where a run goes, what it shows, its seed, or
    `attn` itself, with which a label begins anyway; not of a setting below attn, such as
    attn.scale."""
    return is_below(key, "named", "shown") and not key.startswith("attn.")


def value_in_label(run: _Named, key: str) -> str | None:
    """The value of a setting of a run as a label has it; None for what is not set, and for
    settings of the attention that were not typed, because they belong to the variant."""
    typed = run.overrides.get(key)
    if key not in run.settings:
        # The choice of a group, such as preset=micro, is typed but is no setting.
        return None if typed is None else typed.partition("=")[2]
    if typed is None and key.startswith("attn."):
        return None
    value = run.settings[key]
    if key == LAYER:
        return run.variant  # the name of the class
    if value == {}:  # a group without anything, such as callbacks=none
        return None
    return f"{value:g}" if isinstance(value, float) else str(value)


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Seeds in a sentence: seed 0, seeds 0, 1, 2 or seeds 3 to 12."""
    if len(seeds) > 3 and [*seeds] == [*range(int(seeds[0]), int(seeds[0]) + len(seeds))]:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
