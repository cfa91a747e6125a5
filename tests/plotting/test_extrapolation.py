"""The figure of results beyond the trained length."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab.plotting.curves import ByLength, FigureData, RunCurves
from attnlab.plotting.extrapolation import lengths
from attnlab.plotting.figures import draw
from attnlab.runs.figure_data import figure_data
from attnlab.runs.pairing import pairs
from attnlab.runs.reading import read_runs


def test_longer_texts_have_a_figure_with_the_trained_length_marked(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    result = train("model.learned_positions=false", "data.eval_lengths=[8,64]")
    data = figure_data(pairs(read_runs(result.folder), None))
    values = np.array(result.metrics["by_length"]["64"]["by_position"])
    figure = lengths(data)
    assert figure is not None
    line, mark = figure.axes[0].get_lines()
    assert np.asarray(line.get_xdata()).tolist() == list(range(1, 65, 2))
    assert np.asarray(line.get_ydata()) == pytest.approx(values.reshape(32, 2).mean(1))
    assert np.asarray(mark.get_xdata()).tolist() == [15.5, 15.5]
    names = {file.name for file in draw(data, tmp_path / "plots")}
    assert {"length.png", "length.svg"} <= names


def test_answers_of_a_task_are_drawn_where_there_are_some() -> None:
    values = [float("nan")] * 64 + [0.5] * 64
    longer = ByLength(32, "accuracy", values)
    figure = lengths(FigureData([RunCurves("a", "finished", 9, "character", {}, longer=longer)]))
    assert figure is not None
    line, _ = figure.axes[0].get_lines()
    assert np.asarray(line.get_xdata()).tolist() == list(range(66, 128, 4))
    assert lengths(FigureData([RunCurves("a", "finished", 9, "character", {})])) is None
