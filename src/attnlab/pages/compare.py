"""One HTML page that compares runs: results, curves, paired differences, heads, and settings."""

import math
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
from attnlab.runs.reading import Group, Run, curves_of, labels, read_runs
from attnlab.runs.runs_table import cell, shown
from attnlab.runs.settings import identity
from attnlab.training.summary import READS_AHEAD


def compare(targets: Iterable[str | Path], *, trust: bool = False) -> str:
    """Compare runs on one HTML page, which loads nothing.

    Targets are run directories, or directories of them; `trust` is as for `load_model`, which
    opens runs without a history. Runs that differ only in their seed are one setting. Each setting
    is compared, seed by seed, with the baseline: the setting of `sdpa` with the shortest name or,
    without `sdpa`, the first setting. Raises BadInput if there are no runs, more settings than a
    figure can show, or losses in different units.
    """
    found = [run for target in targets for run in read_runs(Path(target).resolve())]
    runs = list({run.folder: run for run in found}.values())
    curves = curves_of(runs)
    figures.check(curves)
    groups = _by_setting(runs)
    baseline = next(iter(groups))
    texts = {str(run.values["corpus.sha256"]) for run in runs if "corpus.sha256" in run.values}
    # Losses on different texts cannot be compared.
    results = {n: _result(n, of, groups[baseline], len(texts) < 2) for n, of in groups.items()}
    style = looks(groups)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = files("attnlab.pages").joinpath("compare.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        settings=[
            {"name": name, "color": style[name][0], "heads": _heads(of[0], trust=trust)}
            | _row(of, results[name].differences)
            for name, of in groups.items()
        ],
        baseline=baseline,
        unit=curves[0].unit,
        texts=len(texts),
        pictures=_pictures(curves, [*results.values()]),
        differing=_differing({name: of[0].config for name, of in groups.items()}),
    )


def _by_setting(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each setting, the baseline first."""
    names, groups = labels(runs), dict[str, list[Run]]()
    for run in runs:
        groups.setdefault(names[run.group], []).append(run)
    plain = [name for name, of in groups.items() if of[0].values["attn"] == figures.BASELINE]
    first = min(plain, key=len) if plain else next(iter(groups))
    return {first: groups[first]} | groups


def _result(
    name: str, runs: Sequence[Run], baseline: Sequence[Run], same_text: bool
) -> figures.SettingResult:
    """The results of a setting, over its runs that neither diverged nor failed."""
    of_base, of_runs = (
        {run.values.get("seed"): Group((run,)).mean("val_loss") for run in _done(of)}
        for of in (baseline, runs)
    )
    pairs = [(loss, of_base.get(seed)) for seed, loss in of_runs.items()]
    apart = [a - b for a, b in pairs if a is not None and b is not None]
    group, compared = Group(_done(runs)), runs is not baseline and same_text
    return figures.SettingResult(
        name,
        [difference for difference in apart if compared and math.isfinite(difference)],
        [x for run in group.runs if (x := run.values.get("loss_by_position"))],
        {label: x for tag, label in figures.SHARES.items() if (x := group.numbers(tag))},
    )


def _done(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that neither diverged nor failed."""
    return tuple(run for run in runs if run.status in figures.DONE)


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


def _row(runs: Sequence[Run], differences: Sequence[float]) -> dict[str, str]:
    """A setting's row in the table: how its runs ended, their loss, and the paired differences."""
    ends = []
    for status in dict.fromkeys(run.status for run in runs):
        steps = sorted(run.step for run in runs if run.status == status)
        at = " to ".join(f"{x:,}" for x in dict.fromkeys((steps[0], steps[-1])))
        ends.append(f"{len(steps)} {status} at step {at}")
    difference = "-"
    if differences:
        spread = f"{min(differences):+.4f} to {max(differences):+.4f}, {len(differences)} seeds"
        difference = f"{median(differences):+.4f} ({spread if len(differences) > 1 else '1 seed'})"
    if any(x > READS_AHEAD for x in Group(_done(runs)).numbers("attn/future_mass")):
        difference += "; reads ahead, so its loss does not measure prediction"
    row = {"loss": cell(Group(_done(runs)), "val_loss"), "difference": difference}
    return row | {"runs": ", ".join(ends), "heads_of": runs[0].folder.name}


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
