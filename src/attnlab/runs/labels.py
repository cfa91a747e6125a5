"""Labels of settings: what differs among the runs that are shown, from their stored settings."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.errors import printable
from attnlab.runs.reading import Run
from attnlab.runs.settings import settings_with


def label_settings(runs: Sequence[Run]) -> list[str]:
    """A unique label for each setting, of which one run is passed, such as "unscaled n_head=4".

    It names the variant, and the settings in which the runs differ; for a damaged run, its
    directory.
    """
    sound = [run for run in runs if run.status != "damaged"]
    choices, differing = _choices(sound)
    changed = {run.folder: _changes_of_attention(run, sound) for run in sound}
    names = short([*differing, *dict.fromkeys(key for keys in changed.values() for key in keys)])
    labels = []
    for run in runs:
        words = [] if run.status == "damaged" else [printable(run.variant)]
        for key in changed.get(run.folder, ()):
            words.append(f"{names[key]}={in_words(run.attention.get(key))}")
        words += [printable(run.typed[key]) for key in choices if key in run.typed]
        for key in differing:
            if key in run.rest:
                words.append(f"{names[key]}={in_words(run.rest[key])}")
        labels.append(" ".join(words))
    for more in (_differences, _places):
        clashes = [label for label, n in Counter(labels).items() if n > 1 or not label]
        for label in clashes:
            same = [i for i, other in enumerate(labels) if other == label]
            for i, text in zip(same, more([runs[i] for i in same]), strict=True):
                labels[i] = f"{label} {text}".strip()
    return labels


def short(keys: Sequence[str]) -> dict[str, str]:
    """Short forms of dotted keys, such as n_head for model.n_head, where they are unique."""
    last = {key: key.removesuffix("._target_").rpartition(".")[2] for key in keys}
    times = Counter(last.values())
    return {key: name if times[name] == 1 else key for key, name in last.items()}


def in_words(value: Any) -> str:
    """The value of a setting in a label."""
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, bool | list | dict):
        return json.dumps(value, separators=(",", ":"))
    return printable(str(value))[-40:]


def _choices(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The config groups that stand for what they set, as in data=plays, and the other settings in
    which the runs differ."""
    differing = _differing([run.rest for run in runs])
    typed = {key for run in runs for key in run.typed}
    choices, bundles = [], settings_with("bundle")
    for key in sorted(_differing([run.typed for run in runs]), key=lambda key: key in bundles):
        prefix = "" if key in bundles else f"{key}."
        covered = [x for x in differing if x.startswith(prefix) and x not in typed]
        if covered and key not in differing:
            choices.append(key)
            differing = [x for x in differing if x not in covered]
    return choices, differing


def _changes_of_attention(run: Run, others: Sequence[Run]) -> list[str]:
    """The settings of its variant that a run changes and not all others do in the same way."""
    if run.is_plain:
        return []
    same = [other.attention for other in others if other.variant == run.variant]
    typed = [key for key in run.typed if key.startswith("attn.")]
    apart = [k for k in typed if any(other.typed.get(k) != run.typed[k] for other in others)]
    return list(dict.fromkeys([*_differing(same), *apart]))


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if len({json.dumps(row.get(key)) for row in rows}) > 1]


def _differences(runs: Sequence[Run]) -> list[str]:
    """The full differences between the runs."""
    keys = _differing([run.attention | run.rest for run in runs])[:3]
    names = short(keys)
    return [
        " ".join(f"{names[k]}={in_words((run.attention | run.rest).get(k))}" for k in keys)
        for run in runs
    ]


def _places(runs: Sequence[Run]) -> list[str]:
    """Where runs of equal settings lie, relative to what they share; for one run, its name."""
    damaged = all(run.status == "damaged" for run in runs)
    folders = [(run.folder if damaged else run.place).absolute() for run in runs]
    if len(set(folders)) < len(runs):
        folders = [run.folder.absolute() for run in runs]
    above = os.path.commonpath([folder.parent for folder in folders])
    return [f"({printable(os.path.relpath(folder, above))})" for folder in folders]
