"""`attnlab plot`: figures of a sweep, including diverged runs."""

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from typer.testing import CliRunner

from attnlab.commands.cli import app
from attnlab.errors import BadInput
from attnlab.runs import figures
from attnlab.runs.comparison_figure import FigureData, figure_data
from attnlab.runs.pairing import Comparison, Setting, pairs
from attnlab.runs.reading import Run, read_curves, read_runs
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


def data_of(runs: Sequence[Run]) -> FigureData:
    return figure_data(pairs(runs))


def test_curves_come_from_the_events(sweep: Path) -> None:
    curves = read_curves(sweep / "attn=sdpa" / "seed=0", r"val/loss|train/loss")
    assert [step for step, _ in curves["val/loss"]] == [2, 4]  # as the probes' values
    assert len(curves["train/loss"]) == 4


def test_all_figures_are_written_twice(sweep: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plot", str(sweep), "--out", str(tmp_path / "plots")])
    assert result.exit_code == 0, result.output
    files = {file.name for file in (tmp_path / "plots").iterdir()}
    names = ("loss", "entropy", "position", "comparison")
    assert files == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    for file in (tmp_path / "plots").glob("*.svg"):
        ET.fromstring(file.read_text())
    assert ">training</text>" in (tmp_path / "plots" / "loss.svg").read_text()
    assert "pyplot" not in matplotlib.__dict__ or not matplotlib.pyplot.get_fignums()
    assert len(result.output.split()) == 8


def test_a_printed_column_has_its_width_small_print_and_fonts(sweep: Path, tmp_path: Path) -> None:
    options = ["--format", "pdf", "--format", "svg", "--width", "3.3", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, ["plot", str(sweep), *options]).exit_code == 0
    assert len(list(tmp_path.iterdir())) == 8
    for file in tmp_path.glob("*.pdf"):
        content = file.read_bytes()
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([0-9.]+) ", content)
        assert float(width) == pytest.approx(3.3 * 72)
        assert b"/FontFile2" in content  # text is text, in an embedded TrueType font
    sizes = re.findall(r"font-size: ([0-9.]+)px", (tmp_path / "loss.svg").read_text())
    assert sizes and max(map(float, sizes)) < 10


@pytest.mark.parametrize(
    ("option", "sentence"), [("--format=jpg", "png, svg, pdf"), ("--width=0", "1 to 40 inches")]
)
def test_other_formats_and_widths_are_refused(
    option: str, sentence: str, sweep: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=sentence):
        CliRunner().invoke(
            app, ["plot", str(sweep), option, "--out", str(tmp_path)], catch_exceptions=False
        )


def test_a_damaged_history_is_named(sweep: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "copy")
    (copy / "attn=sdpa" / "seed=0" / "history.json").write_text("{}")
    with pytest.raises(BadInput, match=r"history\.json is damaged"):
        data_of(read_runs(copy))


def test_too_many_groups_for_one_figure_are_refused(sweep: Path, tmp_path: Path) -> None:
    (found, *_) = read_runs(sweep)
    many = [
        replace(found, folder=tmp_path / str(n) / "seed=0", overrides=(f"optim.lr={n + 1}e-4",))
        for n in range(41)
    ]
    with pytest.raises(BadInput, match="41 settings"):
        figures.draw(data_of(many), tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def test_different_tasks_do_not_share_an_axis(sweep: Path, tmp_path: Path) -> None:
    (found, *_) = read_runs(sweep)
    words = replace(
        found,
        folder=tmp_path / "seed=0",
        config=found.config | {"module": "mine.WordModule"},
        metrics=found.metrics | {"unit": "word"},
    )
    with pytest.raises(BadInput, match="character and per word"):
        figures.draw(data_of([found, words]), tmp_path)
    for run, unit in ((found, "character"), (words, "word")):
        figure = figures.losses(data_of([replace(run, folder=found.folder)]))
        assert figure is not None
        assert figure.axes[0].get_ylabel() == f"loss (nats per {unit})"


def test_the_band_is_mean_and_deviation_and_diverged_runs_are_named(sweep: Path) -> None:
    figure = figures.losses(data_of(read_runs(sweep)))
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
    figure = figures.losses(data_of(twice))
    assert figure is not None
    assert figure.axes[0].get_legend_handles_labels()[1] == ["strict_flip: diverged"]


def test_runs_without_probes_have_losses_only(train: Callable[..., Any], tmp_path: Path) -> None:
    folder = train().folder
    names = {file.name for file in figures.draw(data_of(read_runs(folder)), tmp_path / "plots")}
    assert names == {"loss.png", "loss.svg"}


def test_nothing_to_plot(sweep: Path) -> None:
    with pytest.raises(BadInput, match="attn=torch_mha"):
        CliRunner().invoke(
            app, ["plot", str(sweep), "--where", "attn=torch_mha"], catch_exceptions=False
        )
    with pytest.raises(BadInput, match="there is no directory"):
        CliRunner().invoke(app, ["plot", str(sweep / "no")], catch_exceptions=False)


def invented(name: str, end: float, metrics: dict[str, Any] | None = None) -> Run:
    return Run(Path(name, str(end)), "finished", 100, {"unit": "character"} | (metrics or {}))


def curves(end: float) -> list[tuple[int, float]]:
    return [(step, end + 3 / step) for step in range(1, 101)]


def shown(*runs: Run, tags: Any = None) -> FigureData:
    """Runs of one label are one setting."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(str(run.folder.parent), []).append(run)
    settings = [Setting(tuple(group), name) for name, group in groups.items()]
    return FigureData([Comparison(setting) for setting in settings], tags)


def test_the_number_of_runs_counts_those_that_have_the_curve() -> None:
    whole, early = invented("sdpa", 2.0), invented("sdpa", 3.0)
    both = {"train/loss": curves(2.0), "val/loss": curves(2.0)}
    tags = {whole.folder: both, early.folder: {"train/loss": [(1, 3.0)]}}
    figure = figures.losses(shown(whole, early, tags=tags))
    assert figure is not None
    labels = [[line.get_label() for line in place.lines] for place in figure.axes]
    assert labels == [["sdpa (n=2)"], ["sdpa (n=1)"]]


@pytest.mark.parametrize(
    "tags",
    [
        {"attn/entropy/L7H0": [(1, 0.2), (2, 0.4)], "attn/entropy/L7H1": [(1, 0.6)]},
        {"layers/entropy/L7": [(1, 0.4)]},
    ],
)
def test_entropy_of_an_unfinished_run_is_drawn_up_to_the_last_complete_step(tags: Any) -> None:
    run = invented("sdpa", 2.0)
    figure = figures.entropies(shown(run, tags={run.folder: tags}))
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert line.get_label() == "layer 7" and list(line.get_ydata()) == [0.4]


def test_twelve_variants_have_labels_and_looks_of_their_own() -> None:
    names = "sdpa manual unscaled flipped peek_one cosine gqa mqa rotary general additive mine"
    runs = [invented(name, 2 + n) for n, name in enumerate(names.split())]
    tags = {
        run.folder: dict.fromkeys(("train/loss", "val/loss"), curves(2 + n))
        for n, run in enumerate(runs)
    }
    figure = figures.losses(shown(*runs, tags=tags))
    assert figure is not None
    training, validation = figure.axes
    assert training.get_xlim() == validation.get_xlim()
    assert training.get_ylim() == validation.get_ylim()
    assert {text.get_text().split(" ")[0] for text in validation.texts} == set(names.split())
    drawn = {(line.get_color(), str(line.get_linestyle())) for line in validation.lines}
    assert len(drawn) >= 10  # custom dashes read back as "--"


def test_longer_texts_have_a_figure_with_the_trained_length_marked(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    result = train("model.learned_positions=false", "data.eval_lengths=[8,64]")
    data = data_of(read_runs(result.folder))
    values = np.array(result.metrics["by_length"]["64"]["by_position"])
    figure = figures.lengths(data)
    assert figure is not None
    line, mark = figure.axes[0].get_lines()
    assert np.asarray(line.get_xdata()).tolist() == list(range(1, 65, 2))
    assert np.asarray(line.get_ydata()) == pytest.approx(values.reshape(32, 2).mean(1))
    assert np.asarray(mark.get_xdata()).tolist() == [15.5, 15.5]
    names = {file.name for file in figures.draw(data, tmp_path / "plots")}
    assert {"length.png", "length.svg"} <= names


def test_answers_of_a_task_are_drawn_where_there_are_some() -> None:
    values = [float("nan")] * 64 + [0.5] * 64
    metrics = {"val_accuracy": 0.5, "by_length.128.accuracy_by_position": values}
    longer = replace(invented("a", 0.0, metrics), config={"model.block_size": 32})
    figure = figures.lengths(shown(longer))
    assert figure is not None
    line, _ = figure.axes[0].get_lines()
    assert np.asarray(line.get_xdata()).tolist() == list(range(66, 128, 4))
    assert figures.lengths(shown(replace(longer, metrics={}))) is None
