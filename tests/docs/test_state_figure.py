"""The figure of recall over state is that of the committed rows."""

import pytest

from attnlab.plotting.drawing import as_svg, styled
from scripts import draw_state


def test_the_figure_is_that_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = draw_state.FILE.read_text(encoding="utf-8")
    with styled():
        assert as_svg(draw_state.draw()) == committed, "run python -m scripts.draw_state"
        real = draw_state.points
        shifted = [point._replace(state=2 * point.state) for point in real("mqar")]
        monkeypatch.setattr(draw_state, "points", lambda task: shifted)
        assert as_svg(draw_state.draw()) != committed


def test_states_are_those_of_keys_and_values() -> None:
    states = {point.variant: point.state for point in draw_state.points("mqar")}
    assert states["sdpa"] == 2 * 2 * 64 * 64  # two layers, keys and values, C and T
    assert states["mqa"] == states["sdpa"] // 2 and states["sliding_window"] == 2 * 2 * 64 * 7
