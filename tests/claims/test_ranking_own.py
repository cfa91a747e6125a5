"""What the ranking says of a layer of the user's own."""

from pathlib import Path

import pytest

from attnlab.claims.ranking import Protocol, find_ranking, is_without_pattern, with_own_variant
from attnlab.claims.ranking_page import ranking_report
from attnlab.commands import claims
from tests.cli import attnlab

OWN = "attn._target_=tests.attention.researchers."


def with_layer(name: str) -> tuple[Protocol, str]:
    """The ranking with a layer of the tests, and its name there."""
    return with_own_variant(find_ranking(), [OWN + name])


@pytest.mark.parametrize(("layer", "patternless"), [("Delta", True), ("Told", False)])
def test_a_layer_without_a_pattern_is_marked(layer: str, patternless: bool) -> None:
    protocol, name = with_layer(layer)
    assert is_without_pattern(protocol, name) == patternless
    marked = [name] if is_without_pattern(protocol, name) else []
    report = ranking_report(protocol, {}, [name], quick=True, patternless=marked)
    assert (f"{name} has no pattern" in report) == patternless


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "patternless"), [("Delta", True), ("Told", False)])
def test_the_command_marks_a_layer_without_a_pattern(
    layer: str, patternless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims, "train_missing", lambda *of: False)  # as if the time were up
    done = attnlab("rank", OWN + layer, "--quick")
    assert done.code == 1 and "Time is up" in done.out, done
    assert ("has no pattern" in done.out) == patternless
