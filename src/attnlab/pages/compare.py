"""One HTML page that compares runs: results, curves, paired differences, heads, and settings."""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import numpy as np

from attnlab.errors import BadInput
from attnlab.pages.explorer import history_of
from attnlab.plotting import figures, heatmaps
from attnlab.plotting.drawing import looks, png, styled, svg
from attnlab.runs.frames import curves_of
from attnlab.runs.pairing import Comparison, pairs
from attnlab.runs.reading import Run, read_runs
from attnlab.runs.runs_table import cell, shown
from attnlab.runs.settings import identity


def compare(targets: Iterable[str | Path], *, trust: bool = False) -> str:
    """Compare runs on one HTML page, which loads nothing.

    Targets are run directories, or directories of them; `trust` is as for `load_model`, which
    opens runs without a history. Runs that differ only in their seed are one setting, and each
    is compared with its baseline, see `attnlab.runs.pairing.pairs`. Raises BadInput if there are
    no runs, more settings than a figure can show, or losses in different units.
    """
    found = [run for target in targets for run in read_runs(Path(target).resolve())]
    runs = list({run.folder: run for run in found}.values())
    curves = curves_of(runs)
    figures.check(curves)
    compared = pairs(runs)
    style = looks(c.setting.label for c in compared)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = files("attnlab.pages").joinpath("compare.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        settings=[
            {"name": c.setting.label, "color": style[c.setting.label][0]}
            | {"heads": _heads(c.setting.first, trust=trust)}
            | _row(c)
            for c in compared
        ],
        baseline=next((c.setting.label for c in compared if c.is_baseline), "none"),
        unit=curves[0].unit,
        texts=len({run.metrics["corpus.sha256"] for run in runs if run.has_result}),
        pictures=_pictures(curves, [_result(c) for c in compared]),
        differing=_differing({c.setting.label: c.setting.first.config for c in compared}),
    )


def _result(c: Comparison) -> figures.SettingResult:
    """The results of a setting, over its runs that neither diverged nor failed."""
    done = [run for run in c.setting.runs if run.status in figures.DONE]
    return figures.SettingResult(
        c.setting.label,
        c.finite,
        [x for run in done if (x := run.values.get("loss_by_position"))],
        {label: x for tag, label in figures.SHARES.items() if (x := c.setting.numbers(tag))},
    )


def _pictures(
    curves: Sequence[figures.RunCurves], results: Sequence[figures.SettingResult]
) -> dict[str, str]:
    """The figures that can be drawn, as SVG under their titles."""
    with styled():
        drawn = {
            "Losses by step": figures.losses(curves, columns=1),
            "At the end": figures.sweep_figure(results, curves[0].unit, columns=1),
        }
        return {title: svg(figure, title) for title, figure in drawn.items() if figure}


def _row(c: Comparison) -> dict[str, str]:
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
    row = {"loss": cell(c, "val_loss"), "difference": difference, "runs": ", ".join(ends)}
    return row | {"heads_of": runs[0].folder.name}


def _heads(run: Run, *, trust: bool) -> list[list[dict[str, Any]]] | str:
    """The maps of a run's heads, layer by layer, as PNG; or why there are none."""
    try:
        history, _ = history_of(str(run.folder), trust=trust)
    except BadInput as error:
        return str(error)
    T, last = len(history.tokens), history.snapshots[-1]
    levels, negative, masks = (
        np.frombuffer(zlib.decompress(b64decode(content)), np.uint8).reshape(-1, T, T)
        for content in (last.weights, last.negative, history.mask)
    )
    weights = np.where(levels == 255, np.nan, (levels / 254.0) ** 2).astype(np.float32)
    weights[negative == 1] *= -1
    entropies, of_heads = last.measures.get("entropy"), iter(weights)
    layers: list[list[dict[str, Any]]] = []
    for layer, count in enumerate(history.heads):
        layers.append([])
        for head in range(count):
            panel = heatmaps.Panel("", next(of_heads), masks[layer].astype(bool))
            picture = b64encode(png(heatmaps.shades(panel))).decode()
            entropy = entropies[layer][head] if entropies else None
            number = "NaN" if entropy is None else f"{entropy:.2f}"
            layers[-1].append({"name": f"L{layer}H{head}", "entropy": number, "png": picture})
    return layers


def _differing(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The configuration keys whose values differ -> the value in each setting."""
    known = {name: identity(dict(config)) for name, config in configs.items()}
    keys = dict.fromkeys(key for config in known.values() for key in config)
    rows = {key: [shown(config.get(key)) for config in known.values()] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1 and key != "seed"}
