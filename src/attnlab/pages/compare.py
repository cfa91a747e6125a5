"""One HTML page that compares runs: the finding, differences, curves, heads, and settings."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from rich.text import Text

from attnlab.errors import BadInput
from attnlab.pages.explorer import history_of
from attnlab.plotting import drawing
from attnlab.runs import figures
from attnlab.runs.comparison_figure import FigureData, figure_data, findings, head_names, parts
from attnlab.runs.history import PatternHistory, maps
from attnlab.runs.labels import in_words
from attnlab.runs.pairing import Comparison, pairs
from attnlab.runs.printing import note_on_costs
from attnlab.runs.runs_table import COMPARED, COSTS, cell, ends, heading, read_selected, usual
from attnlab.runs.sentences import alone, sentence, verdict
from attnlab.runs.settings import identity


def compare(
    targets: Iterable[str | Path],
    *,
    where: Sequence[str] = (),
    baseline: str | None = None,
    trust: bool = False,
) -> str:
    """Compare runs on one HTML page, which loads nothing.

    Targets are run directories, or directories of them; `trust` is as for `load_model`, which
    opens runs without a history; `where` is as for `attnlab.runs.runs_table.select`, and
    `baseline` as for `attnlab.runs.pairing.pairs`. BadInput if there are no runs, if a figure
    cannot show so many settings, or if the losses are in different units.
    """
    runs = read_selected([Path(target).resolve() for target in targets], where)
    compared = pairs(runs, baseline)
    data = figure_data(compared, with_maps=False)
    figures.check(data)
    histories = {c.setting.label: _history(c, trust=trust) for c in compared}
    heads = {name: _heads(x) for name, x in histories.items() if isinstance(x, PatternHistory)}
    sentences = [alone(c.setting) for c in compared if not c.pairs]
    sentences += [text for c in compared for text in (sentence(c), verdict(c))]
    columns = usual(compared, COMPARED)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = files("attnlab.pages").joinpath("compare.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        headings=[_heading(compared, key) for key in columns],
        settings=[_row(c, columns) | {"color": data.style[c.setting.label][0]} for c in compared],
        unit=data.unit,
        texts=len({run.metrics["corpus.sha256"] for run in runs if run.has_result}),
        findings=findings(compared) or [f"{len(compared)} settings"],
        costs={
            _heading(compared, key): [cell(c, key) for c in compared]
            for key in usual(compared, COSTS)
        },
        note_on_costs=note_on_costs(compared),
        sentences=[text for text in sentences if text],
        pictures=_pictures(data),
        heads=heads,
        columns=head_names(heads),
        without={name: x for name, x in histories.items() if isinstance(x, str)},
        differing=_differing({c.setting.label: c.setting.first.config for c in compared}),
    )


def _heading(compared: Sequence[Comparison], key: str) -> str:
    return heading(compared, key).replace("-\n", "").replace("\n", " ")


def _row(c: Comparison, columns: Sequence[str]) -> dict[str, Any]:
    """A setting's row, with the cells of the table in the terminal."""
    row = {"name": c.setting.label, "cells": [cell(c, key) for key in columns]}
    return row | {"runs": f"{len(c.setting.runs)}: {Text.from_markup(ends(c.setting)).plain}"}


def _pictures(data: FigureData) -> dict[str, str]:
    """The panels of the comparison as SVG under their titles."""
    pictures = {}
    with drawing.styled():
        for title, draw in parts(data).items():
            figure, (place,) = drawing.panels(1, width=6.4, height=4.6)
            draw(place)
            pictures[title] = drawing.svg(figure, title, text_as="none")
    return pictures


def _history(c: Comparison, *, trust: bool) -> PatternHistory | str:
    """The patterns of the first run of a setting, or why there are none."""
    try:
        return history_of(str(c.setting.first.folder), trust=trust)[0]
    except BadInput as error:
        return str(error)


def _heads(history: PatternHistory) -> dict[str, dict[str, str]]:
    """The map of each head as a PNG file in base64, and its entropy, by its name."""
    layers = history.snapshots[-1].measures.get("entropy", [])
    entropies = ["NaN" if x is None else f"{x:.2f}" for layer in layers for x in layer]
    found = {}
    for number, (name, picture) in enumerate(maps(history).items()):
        png = b64encode(drawing.png(picture)).decode()
        found[name] = {"png": png, "entropy": entropies[number] if entropies else "NaN"}
    return found


def _differing(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The configuration keys whose values differ -> the value in each setting."""
    settings = [identity(dict(config)) for config in configs.values()]
    rows = {}
    for key in dict.fromkeys(key for config in settings for key in config):
        row = [in_words(config[key]) if key in config else "-" for config in settings]
        if key == "attn.scale":
            row = ["1/sqrt(D)" if value == "null" else value for value in row]
        if len(set(row)) > 1 and key != "seed":
            rows[key] = row
    return rows
