"""One HTML page that compares runs: the finding, differences, curves, heads, and settings."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import jinja2

from attnlab.errors import BadInput
from attnlab.pages.explorer import history_of
from attnlab.plotting import drawing, figures
from attnlab.plotting.comparisons import head_names, parts
from attnlab.plotting.curves import FigureData
from attnlab.runs.figure_data import figure_data, findings
from attnlab.runs.history import PatternHistory, maps
from attnlab.runs.labels import in_words
from attnlab.runs.pairing import Comparison, pairs
from attnlab.runs.reading import read_runs
from attnlab.runs.runs_table import cell
from attnlab.runs.sentences import alone, sentence, verdict
from attnlab.runs.settings import identity


def compare(
    targets: Iterable[str | Path], *, baseline: str | None = None, trust: bool = False
) -> str:
    """Compare runs on one HTML page, which loads nothing.

    Targets are run directories, or directories of them; `trust` is as for `load_model`, which
    opens runs without a history. Runs that differ only in their seed are one setting, and each
    is compared with its baseline, see `attnlab.runs.pairing.pairs`. Raises BadInput if there are
    no runs, more settings than a figure can show, or losses in different units.
    """
    runs = [run for target in targets for run in read_runs(Path(target).resolve())]
    compared = pairs(runs, baseline)
    data = figure_data(compared, {})
    figures.check(data.runs)
    style = drawing.looks(c.setting.label for c in compared)
    histories = {c.setting.label: _history(c, trust=trust) for c in compared}
    heads = {name: _heads(x) for name, x in histories.items() if isinstance(x, PatternHistory)}
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = files("attnlab.pages").joinpath("compare.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        settings=[_row(c) | {"color": style[c.setting.label][0]} for c in compared],
        baseline=next((c.setting.label for c in compared if c.is_baseline), "none"),
        unit=data.runs[0].unit,
        texts=len({run.metrics["corpus.sha256"] for run in runs if run.has_result}),
        findings=findings(compared) or [f"{len(compared)} settings"],
        sentences=[x for c in compared for x in _sentences(c) if x],
        pictures=_pictures(data),
        heads=heads,
        columns=head_names(heads),
        without={name: x for name, x in histories.items() if isinstance(x, str)},
        differing=_differing({c.setting.label: c.setting.first.config for c in compared}),
    )


def _sentences(c: Comparison) -> list[str]:
    return [alone(c.setting)] if c.is_baseline else [sentence(c), verdict(c)]


def _pictures(data: FigureData) -> dict[str, str]:
    """The panels of the comparison as SVG under their titles."""
    pictures = {}
    with drawing.styled():
        for title, draw in parts(data).items():
            figure, (place,) = drawing.panels(1, width=6.4, height=4.6)
            draw(place)
            pictures[title] = drawing.svg(figure, title, text_as="none")
    return pictures


def _row(c: Comparison) -> dict[str, Any]:
    """A setting's row in the table: how its runs ended, their loss, and the paired differences."""
    ends, runs = [], c.setting.runs
    for status in dict.fromkeys(run.status for run in runs):
        steps = sorted(run.step for run in runs if run.status == status)
        at = " to ".join(f"{x:,}" for x in dict.fromkeys((steps[0], steps[-1])))
        ends.append(f"{len(steps)} {status} at step {at}")
    difference = cell(c, "difference")
    if c.finite:
        spread = f"{min(c.finite):+.4f} to {max(c.finite):+.4f}, {len(c.finite)} seeds"
        difference = f"{median(c.finite):+.4f} ({spread if len(c.finite) > 1 else '1 seed'})"
    if c.reads_ahead:
        difference += "; reads ahead, so its loss does not measure prediction"
    row = {"name": c.setting.label, "loss": cell(c, "val_loss"), "runs": ", ".join(ends)}
    return row | {"difference": difference}


def _history(c: Comparison, *, trust: bool) -> PatternHistory | str:
    """The patterns of the first run of a setting, or why there are none."""
    try:
        return history_of(str(c.setting.first.folder), trust=trust)[0]
    except BadInput as error:
        return str(error)


def _heads(history: PatternHistory) -> dict[str, dict[str, str]]:
    """The map of each head as a PNG file in base64, and its entropy, by its name."""
    entropies = [x for layer in history.snapshots[-1].measures.get("entropy", []) for x in layer]
    found = {}
    for number, (name, picture) in enumerate(maps(history).items()):
        entropy = entropies[number] if entropies else None
        words = "NaN" if entropy is None else f"{entropy:.2f}"
        found[name] = {"png": b64encode(drawing.png(picture)).decode(), "entropy": words}
    return found


def _differing(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The configuration keys whose values differ -> the value in each setting."""
    settings = [identity(dict(config)) for config in configs.values()]
    keys = dict.fromkeys(key for config in settings for key in config)
    rows = {key: [_in_words(key, config) for config in settings] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1 and key != "seed"}


def _in_words(key: str, config: Mapping[str, Any]) -> str:
    if key == "attn.scale" and key in config and config[key] is None:
        return "1/sqrt(D)"
    return in_words(config[key]) if key in config else "-"
