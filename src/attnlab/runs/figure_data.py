"""What figures show of comparisons: curves, paired differences, patterns, and the finding."""

import math
import re
from collections.abc import Mapping, Sequence

from attnlab.errors import BadInput
from attnlab.plotting.curves import ByLength, FigureData, RunCurves
from attnlab.plotting.drawing import Pixels
from attnlab.runs.history import maps, read_history
from attnlab.runs.pairing import Comparison
from attnlab.runs.reading import Run, read_curves
from attnlab.runs.sentences import claim

MOST_FINDINGS = 3  # in a title


def figure_data(
    comparisons: Sequence[Comparison], shown_maps: Mapping[str, Mapping[str, Pixels]] | None = None
) -> FigureData:
    """Collect what figures show of comparisons; maps of heads by label, or from history.json."""
    runs = [(run, c.setting.label) for c in comparisons for run in c.setting.runs]
    # Unfinished runs have no metrics, so their unit is that of the others.
    unit = next((str(run.values["unit"]) for run, _ in runs if "unit" in run.values), "character")
    compared = [c for c in comparisons if c.pairs and not c.is_baseline]
    return FigureData(
        runs=[_curves(run, label, unit) for run, label in runs],
        title="; ".join(findings(comparisons)),
        differences={c.setting.label: c.differences for c in compared},
        maps=_maps_of_runs(comparisons) if shown_maps is None else shown_maps,
    )


def findings(comparisons: Sequence[Comparison]) -> list[str]:
    """What the comparisons say, at most three of them, the largest differences."""
    paired = [c for c in comparisons if c.pairs and not c.is_baseline]
    size = {
        id(c): abs(c.interval[0]) if math.isfinite(c.interval[0]) else math.inf for c in paired
    }
    return [claim(c) for c in sorted(paired, key=lambda c: -size[id(c)])[:MOST_FINDINGS]]


def _curves(run: Run, label: str, unit: str) -> RunCurves:
    return RunCurves(
        name=label,
        status=run.status,
        step=run.step,
        unit=str(run.values.get("unit", unit)),
        scalars=read_curves(run.folder, r"(train|val)/loss|(attn|layers)/entropy/L.*"),
        by_position=run.metrics.get("loss_by_position", ()),
        longer=_longer(run),
    )


def _maps_of_runs(comparisons: Sequence[Comparison]) -> dict[str, dict[str, Pixels]]:
    """The patterns of the first run of each setting, where it has a sound history.json."""
    patterns = {}
    for c in comparisons:
        try:
            if history := read_history(c.setting.first.folder):
                patterns[c.setting.label] = maps(history)
        except BadInput:  # the page says what is wrong with it
            continue
    return patterns


def _longer(run: Run) -> ByLength | None:
    """The result at the largest of `data.eval_lengths`, if it is beyond the trained length."""
    key = "accuracy_by_position" if "val_accuracy" in run.metrics else "by_position"
    names = re.compile(rf"by_length\.(\d{{1,5}})\.{key}")
    results = {int(m[1]): x for name, x in run.metrics.items() if (m := names.fullmatch(name))}
    trained, length = run.values.get("model.block_size"), max(results, default=0)
    if not isinstance(trained, int) or length <= trained:
        return None
    measure = f"loss (nats per {run.values['unit']})" if key == "by_position" else "accuracy"
    return ByLength(trained, measure, results[length])
