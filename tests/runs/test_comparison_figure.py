"""The figure that compares settings with their baselines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab.plotting.drawing import color_of
from attnlab.runs.comparison_figure import FigureData, comparison
from attnlab.runs.pairing import Comparison, Setting
from attnlab.runs.reading import Run


def run(name: str, seed: int, end: float, status: str = "finished") -> Run:
    metrics = {"unit": "character", "loss_by_position": [end + 0.01, end], "val_loss": end}
    return Run(Path(name, f"seed={seed}"), status, 100, metrics, {"seed": seed})


def curves(end: float, points: int = 100) -> dict[str, Any]:
    curve = [(step, end + 3 / step) for step in range(1, points + 1)]
    return {"train/loss": curve, "val/loss": curve[-1:]}


def red(side: int) -> np.ndarray:
    return np.full((side, side, 3), (255, 0, 0), np.uint8)


SDPA = Setting(tuple(run("sdpa", seed, 2.0) for seed in range(3)), "sdpa")
UNSCALED = Setting((run("u", 0, 2.1), run("u", 1, 2.3), run("u", 2, 9.0, "diverged")), "unscaled")
PAIRS = tuple(zip(UNSCALED.runs, SDPA.runs, strict=True))
DATA = FigureData(
    [Comparison(SDPA, SDPA), Comparison(UNSCALED, SDPA, "", PAIRS)],
    {each.folder: curves(each.loss) for each in (*SDPA.runs, *UNSCALED.runs[:2])}
    | {UNSCALED.runs[2].folder: {}},
    maps={"sdpa": {"L0H0": red(32), "L0H1": red(32)}, "unscaled": {"L0H0": red(64)}},
)
ALONE = Comparison(Setting(SDPA.runs[:1], "sdpa"))


def test_the_title_states_the_finding_above_all_panels() -> None:
    figure = comparison(DATA)
    assert figure is not None
    assert figure.get_suptitle().startswith("unscaled diverged at step 100 in 1 of 3 seeds; sdpa")
    titles = [place.get_title() for place in figure.axes]
    assert titles[:3] == ["loss by step", "each seed minus the baseline", "loss by position"]
    assert titles[3].startswith("patterns at the end, first seed")


def test_a_panel_without_data_is_left_out() -> None:
    bare = replace(ALONE.setting.first, metrics={"val_loss": 2.0})
    alone = Comparison(replace(ALONE.setting, runs=(bare,)))
    figure = comparison(FigureData([alone], {bare.folder: curves(2.0)}))
    assert figure is not None and len(figure.axes) == 1
    assert comparison(FigureData([alone], {bare.folder: {}})) is None


def test_curves_are_means_over_seeds_without_the_start() -> None:
    """Of the training, because there is one validation."""
    place = comparison(DATA).axes[0]
    assert place.get_ylabel().startswith("training loss")
    line = next(line for line in place.lines if line.get_label() == "unscaled")
    assert line.get_ydata()[-1] == pytest.approx(2.2 + 3 / 100, abs=1e-3)
    assert len(line.get_ydata()) == 60  # neighboring points of a long curve are averaged
    assert place.get_ylim()[1] < 2.7  # the first loss is 5


def test_curves_of_different_lengths_are_means_at_the_steps_that_all_have() -> None:
    runs = SDPA.runs[:2]
    of = {runs[0].folder: curves(2.0, 1000), runs[1].folder: curves(2.2, 570)}
    figure = comparison(FigureData([Comparison(Setting(runs, "sdpa"))], of))
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert len(line.get_ydata()) == 60 and line.get_xdata()[-1] == 570
    assert line.get_ydata()[-1] == pytest.approx(2.1 + 3 / 570, abs=1e-3)


def test_each_seed_is_drawn_in_the_color_of_its_variant_and_lost_ones_are_counted() -> None:
    place = comparison(DATA).axes[1]
    (seeds, _zero) = place.get_lines()
    assert list(seeds.get_xdata()) == pytest.approx([0.1, 0.3])
    assert seeds.get_color() == color_of("unscaled")
    assert place.get_yticklabels()[0].get_text() == "unscaled (1\ndiverged)"


def test_the_bar_is_the_median_of_the_table_which_counts_diverged_seeds() -> None:
    place = comparison(DATA).axes[1]
    (bar,) = place.collections
    (((x, _), _),) = bar.get_segments()
    assert x == pytest.approx(0.3)  # of 0.1, 0.3 and infinity
    assert x == DATA.comparisons[1].interval[0]


def test_the_axis_of_the_loss_by_position_begins_at_the_data() -> None:
    place = comparison(DATA).axes[2]
    assert place.get_lines()[1].get_ydata() == pytest.approx([2.21, 2.2])
    assert 1.9 < place.get_ylim()[0] < 2.0


def test_heads_are_a_grid_of_settings_by_heads() -> None:
    """Maps of different texts have one size; a head that a setting lacks is white."""
    place = comparison(DATA).axes[3]
    assert [label.get_text() for label in place.get_xticklabels()] == ["L0H0", "L0H1"]
    assert [label.get_text() for label in place.get_yticklabels()] == ["sdpa", "unscaled"]
    assert place.get_yticklabels()[1].get_color() == color_of("unscaled")
    (image,) = place.get_images()
    sheet = np.asarray(image.get_array())
    painted = (sheet == (255, 0, 0)).all(-1)
    assert painted.sum() == 3 * 64 * 64
    assert (sheet[-64:, -64:] == 255).all()


def test_queries_go_down_and_keys_to_the_right() -> None:
    last_query = np.full((8, 8, 3), 255, np.uint8)
    last_query[-1] = (255, 0, 0)
    place = comparison(replace(DATA, maps={"sdpa": {"L0H0": last_query}})).axes[3]
    sheet = np.asarray(place.get_images()[0].get_array())[:8, :8]
    assert np.array_equal(sheet, last_query)


def test_many_heads_are_cut_and_the_title_says_so() -> None:
    many = {f"L{layer}H{head}": red(8) for layer in range(6) for head in range(6)}
    place = comparison(replace(DATA, maps={"sdpa": many})).axes[3]
    assert len(place.get_xticklabels()) == 16
    assert "16 of 36 heads" in place.get_title()
