"""The picture of a sweep shows what its runs have numbers for."""

import pytest

from attnlab.plotting.drawing import KNOWN
from attnlab.plotting.sweep_figure import SettingResult, sweep_figure


def test_each_seed_is_drawn_in_the_color_of_its_variant() -> None:
    settings = [SettingResult("sdpa"), SettingResult("unscaled", differences=[0.1, 0.2, 0.4])]
    figure = sweep_figure(settings, "character")
    (place,) = figure.axes  # no panel without numbers
    (seeds, _) = place.get_lines()
    assert list(seeds.get_xdata()) == [0.1, 0.2, 0.4]
    assert seeds.get_color() == KNOWN["unscaled"][0]


def test_panels_come_with_their_numbers() -> None:
    curves, shares = [[2.5, 2.0], [2.7, 2.2]], {"weight on the future": [0.9, 0.94]}
    flipped = SettingResult("flipped", [-2.0, -2.1], curves, shares)
    figure = sweep_figure([SettingResult("sdpa"), flipped], "character")
    _, positions, at_end = figure.axes
    assert list(positions.get_lines()[0].get_ydata()) == pytest.approx([2.6, 2.1])
    assert at_end.get_lines()[-1].get_xdata()[0] == pytest.approx(0.92)
