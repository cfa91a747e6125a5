"""The axes of the figure of a comparison show the settings that can be compared."""

from pathlib import Path

import pytest

from attnlab.runs.compare import compare
from attnlab.runs.compared_runs import compared_runs
from attnlab.runs.figure import draw_comparison
from attnlab.runs.frame import read_runs
from attnlab.runs.report import attention_sentence
from tests.invented import write_run

# Variant -> its loss above that of the baseline. "flipped" reads the future.
HONEST = {"unscaled": 0.02, "identical_heads": 0.01, "identical_qkv": -0.03}


@pytest.mark.parametrize("leak", [-2.4, 1.5])
def test_a_leak_does_not_press_the_others_into_a_line(leak: float, tmp_path: Path) -> None:
    for variant, difference in {"sdpa": 0.0, "flipped": leak, **HONEST}.items():
        mass = 0.9 if variant == "flipped" else 0.0
        end = 2.4 + difference
        curve = {"val/loss": [end + 0.05, end + 0.01, end]}
        write_run(tmp_path, variant, 0, end, curves=curve, future_mass=mass)
    panels = {x.get_title(): x for x in draw_comparison(compare(read_runs(tmp_path))).axes}
    differences = panels["each seed minus the baseline"]
    low, high = differences.get_xlim()
    assert low < -0.03 and high > 0.02 and high - low < 0.1
    (edge,) = differences.texts
    assert f"{leak:.2f}" in edge.get_text() and edge.get_position()[0] in (low, high)
    low, high = panels["loss by step"].get_ylim()
    assert low < 2.37 and high > 2.4 and high - low < 0.2


def test_without_a_leak_every_seed_is_in_the_panel(tmp_path: Path) -> None:
    for variant, difference in {"sdpa": 0.0, **HONEST, "none": 1.0}.items():
        write_run(tmp_path, variant, 0, 2.4 + difference)
    panels = {x.get_title(): x for x in draw_comparison(compare(read_runs(tmp_path))).axes}
    low, high = panels["each seed minus the baseline"].get_xlim()
    assert low < -0.03 and high > 1.0


def test_a_further_seed_of_the_baseline_does_not_change_a_pair(tmp_path: Path) -> None:
    write_run(tmp_path, "unscaled", 0, 2.1, head_similarity=1.0, entropy=0.2, effective_keys=2.0)
    write_run(tmp_path, "sdpa", 0, 2.0, head_similarity=0.1, entropy=0.8, effective_keys=9.0)
    sentences = set()
    for seed in (7, 8):
        (pair,) = (c for c in compare(read_runs(tmp_path)) if not c.is_baseline)
        sentences.add(attention_sentence(pair))
        write_run(
            tmp_path, "sdpa", seed, 1.9, head_similarity=0.5, entropy=0.1, effective_keys=1.0
        )
    assert len(sentences) == 1 and "0.100" in sentences.pop()


@pytest.mark.parametrize(
    ("losses", "best", "at_edge"),
    [
        ((2.3, 2.1, 2.2), 0.003, False),
        ((2.1, 2.2, 2.3), 0.001, True),
        ((2.3, 2.2, 2.1), 0.01, True),
    ],
)
def test_a_best_rate_and_the_end_of_its_grid_are_drawn_said_and_listed(
    losses: tuple[float, ...], best: float, at_edge: bool, tmp_path: Path
) -> None:
    for rate, loss in zip((0.001, 0.003, 0.01), losses, strict=True):
        for seed in range(2):
            write_run(tmp_path, "sdpa", seed, loss + seed / 100, f"optim.lr={rate}")
    found = compared_runs(read_runs(tmp_path), best="lr")
    (axes,) = (x for x in found.figure().axes if x.get_title() == "loss by optim.lr")
    line, *points, ring = axes.lines
    assert line.get_xdata().tolist() == [0.001, 0.003, 0.01]
    assert line.get_ydata().tolist() == pytest.approx([loss + 0.005 for loss in losses])
    assert [len(x.get_xdata()) for x in points] == [2, 2, 2]
    assert ring.get_xdata() == [best]
    assert [x.get_text() for x in axes.get_xticklabels()] == ["0.001", "0.003", "0.01"]
    (legend,) = (x.get_text() for x in axes.get_legend().get_texts())
    assert ("end of the grid" in legend) == at_edge
    (tried,) = found.to_dict()["tried"]
    assert (tried["best"], tried["at_edge"]) == (best, at_edge)
    assert [x["mean"] for x in tried["values"]] == pytest.approx(line.get_ydata().tolist())
    assert ("at the edge" in " ".join(found.text().split())) == at_edge
