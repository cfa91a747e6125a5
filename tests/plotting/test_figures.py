"""`attnlab plot`: figures of a sweep, including diverged runs."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from typer.testing import CliRunner

from attnlab.commands.cli import app
from attnlab.errors import BadInput
from attnlab.plotting import figures
from attnlab.plotting.drawing import KNOWN
from attnlab.runs.frames import curves_of
from attnlab.runs.reading import read_curves, read_runs
from tests.probes.test_training_probes import LOGGED


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    from attnlab.runs.run_directory import folder_for
    from attnlab.training.config import read_config
    from attnlab.training.run import run
    from tests.conftest import SMALL, settings

    root = tmp_path_factory.mktemp("sweep")
    for variant, seed in (("sdpa", 0), ("sdpa", 1), ("strict_flip", 0)):
        changed = [f"attn={variant}", f"seed={seed}"]
        cfg = settings(*SMALL, f"data.path={text_file}", *LOGGED, f"outputs={root}", *changed)
        cfg.trainer.log_every_n_steps = 1
        run(
            read_config(cfg), folder_for(cfg, variant, changed), variant=variant, overrides=changed
        )
    return root / "lab"


def test_curves_come_from_the_events(sweep: Path) -> None:
    curves = read_curves(sweep / "attn=sdpa" / "seed=0", r"val/loss|train/loss")
    assert [step for step, _ in curves["val/loss"]] == [2, 4]  # as the probes' values
    assert len(curves["train/loss"]) == 4


def test_all_figures_are_written_twice(sweep: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plot", str(sweep), "--out", str(tmp_path / "plots")])
    assert result.exit_code == 0, result.output
    files = {file.name for file in (tmp_path / "plots").iterdir()}
    assert files == {f"{n}.{e}" for n in ("loss", "entropy", "position") for e in ("png", "svg")}
    for file in (tmp_path / "plots").glob("*.svg"):
        ET.fromstring(file.read_text())
    assert "pyplot" not in matplotlib.__dict__ or not matplotlib.pyplot.get_fignums()
    assert len(result.output.split()) == 6


def test_too_many_groups_for_one_figure_are_refused(sweep: Path, tmp_path: Path) -> None:
    (found, *_) = read_runs(sweep)
    many = [
        replace(found, folder=tmp_path / str(n) / "seed=0", overrides=(f"optim.lr={n + 1}e-4",))
        for n in range(36)
    ]
    with pytest.raises(BadInput, match="36 settings"):
        figures.draw(curves_of(many), tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def test_different_tasks_do_not_share_an_axis(sweep: Path, tmp_path: Path) -> None:
    (found, *_) = read_runs(sweep)
    words = replace(
        found,
        config=found.config | {"module": "mine.WordModule"},
        metrics=found.metrics | {"unit": "word"},
    )
    with pytest.raises(BadInput, match="character and per word"):
        figures.draw(curves_of([found, words]), tmp_path)
    for run, unit in ((found, "character"), (words, "word")):
        figure = figures.losses(curves_of([run]))
        assert figure is not None
        assert figure.axes[0].get_ylabel() == f"loss (nats per {unit})"


def test_the_band_is_mean_and_deviation_and_diverged_runs_are_named(sweep: Path) -> None:
    figure = figures.losses(curves_of(read_runs(sweep)))
    assert figure is not None
    training = figure.axes[0]
    curves = [
        dict(read_curves(sweep / "attn=sdpa" / f"seed={seed}", "train/loss")["train/loss"])
        for seed in (0, 1)
    ]
    steps = sorted(curves[0])
    values = np.array([[curve[step] for step in steps] for curve in curves])
    (line,) = [line for line in training.lines if line.get_label() == "sdpa (n=2)"]
    assert np.allclose(line.get_ydata(), values.mean(0))
    (band,) = training.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx((values.mean(0) + values.std(0, ddof=1)).max())
    assert any(line.get_label() == "strict_flip: diverged" for line in training.lines)
    twice = [run for run in read_runs(sweep) if run.status == "diverged"] * 2
    figure = figures.losses(curves_of(twice))
    assert figure is not None
    assert figure.axes[0].get_legend_handles_labels()[1] == ["strict_flip: diverged"]


def test_runs_without_probes_have_losses_only(train: Callable[..., Any], tmp_path: Path) -> None:
    folder = train().folder
    names = {file.name for file in figures.draw(curves_of(read_runs(folder)), tmp_path / "plots")}
    assert names == {"loss.png", "loss.svg"}


def test_nothing_to_plot(sweep: Path) -> None:
    with pytest.raises(BadInput, match="attn=torch_mha"):
        CliRunner().invoke(
            app, ["plot", str(sweep), "--where", "attn=torch_mha"], catch_exceptions=False
        )
    with pytest.raises(BadInput, match="there is no directory"):
        CliRunner().invoke(app, ["plot", str(sweep / "no")], catch_exceptions=False)


def invented(name: str, seed: int, end: float) -> figures.RunCurves:
    curve = [(step, end + 3 / step) for step in range(1, 101)]
    return figures.RunCurves(
        name, name, seed, "finished", 100, "character", {"train/loss": curve, "val/loss": curve}
    )


def test_overlapping_curves_are_drawn_as_paired_differences() -> None:
    ends = {"sdpa": 2.0, "unscaled": 1.98, "flipped": 0.1}
    runs = [invented(name, seed, end + seed) for name, end in ends.items() for seed in (0, 1)]
    figure = figures.losses(runs)
    assert figure is not None
    difference = figure.axes[2]
    lines = {line.get_label(): line.get_ydata() for line in difference.lines}
    assert np.allclose(lines["unscaled"], -0.02)  # though the seeds differ by 1
    assert "flipped" not in lines and "sdpa" not in lines
    apart = figures.losses([invented("sdpa", 0, 2.0), invented("flipped", 0, 0.1)])
    assert apart is not None and len(apart.axes) == 2


def test_losses_on_different_texts_are_not_subtracted() -> None:
    near = invented("sdpa", 0, 2.0), invented("unscaled", 0, 1.98)
    for texts, panels in (("aa", 3), ("ab", 2), (("a", None), 3)):
        runs = [replace(run, text=text) for run, text in zip(near, texts, strict=True)]
        figure = figures.losses(runs)
        assert figure is not None and len(figure.axes) == panels


def test_the_number_of_runs_counts_those_that_have_the_curve() -> None:
    early = replace(invented("sdpa", 1, 2.0), scalars={"train/loss": [(1, 3.0)]})
    figure = figures.losses([invented("sdpa", 0, 2.0), early])
    assert figure is not None
    labels = [[line.get_label() for line in place.lines] for place in figure.axes[:2]]
    assert labels == [["sdpa (n=2)"], ["sdpa (n=1)"]]


def test_entropy_of_an_unfinished_run_is_drawn_up_to_the_last_complete_step() -> None:
    tags = {"attn/entropy/L7H0": [(1, 0.2), (2, 0.4)], "attn/entropy/L7H1": [(1, 0.6)]}
    figure = figures.entropies([replace(invented("sdpa", 0, 2.0), scalars=tags)])
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert line.get_label() == "layer 7" and list(line.get_ydata()) == [0.4]


def test_twelve_variants_have_labels_and_looks_of_their_own() -> None:
    names = "sdpa manual unscaled flipped peek_one cosine gqa mqa rotary general additive mine"
    runs = [invented(name, 0, 2 + n) for n, name in enumerate(names.split())]
    figure = figures.losses(runs)
    assert figure is not None
    training, validation, *_ = figure.axes
    assert training.get_xlim() == validation.get_xlim()
    assert training.get_ylim() == validation.get_ylim()
    assert {text.get_text().split(" ")[0] for text in validation.texts} == set(names.split())
    drawn = {(line.get_color(), str(line.get_linestyle())) for line in validation.lines}
    assert len(drawn) >= 10  # custom dashes read back as "--"


def test_each_seed_is_drawn_in_the_color_of_its_variant() -> None:
    settings = [
        figures.SettingResult("sdpa"),
        figures.SettingResult("unscaled", differences=[0.1, 0.2, 0.4]),
    ]
    figure = figures.sweep_figure(settings, "character")
    (place,) = figure.axes  # no panel without numbers
    (seeds, _) = place.get_lines()
    assert list(seeds.get_xdata()) == [0.1, 0.2, 0.4]
    assert seeds.get_color() == KNOWN["unscaled"][0]


def test_panels_are_written_with_their_numbers() -> None:
    curves, shares = [[2.5, 2.0], [2.7, 2.2]], {"weight on the future": [0.9, 0.94]}
    flipped = figures.SettingResult("flipped", [-2.0, -2.1], curves, shares)
    figure = figures.sweep_figure([figures.SettingResult("sdpa"), flipped], "character")
    _, positions, at_end = figure.axes
    assert list(positions.get_lines()[0].get_ydata()) == pytest.approx([2.6, 2.1])
    assert at_end.get_lines()[-1].get_xdata()[0] == pytest.approx(0.92)
