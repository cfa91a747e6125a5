"""What TensorBoard shows of several runs: short names, all settings, both losses in one chart."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.backend_context import Context

from attnlab.pages.board import board_names, link_runs
from attnlab.runs.frame import read_runs
from attnlab.training.loggers import log_settings
from tests.invented import write_run


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two sweeps whose directories have long names, of which one setting differs."""
    root = tmp_path / "outputs"
    for seed in (0, 1):
        for variant in ("sdpa", "unscaled"):
            long = ("experiment=unscaled", "optim.lr=0.003", "trainer.max_steps=20")
            write_run(root / "unscaled", variant, seed, 2.0, *long)
    for heads in (1, 4):
        write_run(root / "lab", "sdpa", 0, 2.0, f"model.n_head={heads}")
    return root


def test_a_name_says_what_differs_in_its_sweep(outputs: Path) -> None:
    named = board_names(read_runs(outputs))
    assert sorted(named) == [
        "sdpa n_head=1 seed=0 (lab)",
        "sdpa n_head=4 seed=0 (lab)",
        "sdpa seed=0 (unscaled)",
        "sdpa seed=1 (unscaled)",
        "unscaled seed=0 (unscaled)",
        "unscaled seed=1 (unscaled)",
    ]
    assert all(folder.name == name.split()[-2] for name, folder in named.items())
    assert len({*named.values()}) == 6
    assert "sdpa seed=0" in board_names(read_runs(outputs / "unscaled"))


@pytest.mark.parametrize(
    "values",
    [
        ("a/b.txt", "a/c.txt"),
        ("x" * 300 + "a" + "x" * 300, "x" * 300 + "b" + "x" * 300),
        ("\N{PILE OF POO}" * 100, "\N{GHOST}" * 100),
        ("Note", "note"),
    ],
)
def test_any_label_is_the_name_of_a_link(values: tuple[str, str], tmp_path: Path) -> None:
    for number, value in enumerate(values):
        folder = tmp_path / "sweep" / f"run{number}" / "seed=0"
        write_run(tmp_path, "sdpa", 0, 2.0, f"model.note={value}", folder=folder)
    named = board_names(read_runs(tmp_path / "sweep"))
    assert len(named) == len({name.casefold() for name in named}) == 2
    assert all(name.startswith("sdpa note=") for name in named)
    (links := tmp_path / "links").mkdir()
    link_runs(links, named)
    assert {link.resolve() for link in links.iterdir()} == {*named.values()}


def test_links_follow_the_runs(outputs: Path, tmp_path: Path) -> None:
    (links := tmp_path / "links").mkdir()
    link_runs(links, board_names(read_runs(outputs / "unscaled")))
    assert (links / "sdpa seed=0" / ".hydra").is_dir() and len([*links.iterdir()]) == 4
    write_run(outputs / "unscaled", "sdpa", 0, 2.0, "model.n_head=1")  # now heads differ
    named = board_names(read_runs(outputs / "unscaled"))
    link_runs(links, named)
    assert {link.name: link.readlink() for link in links.iterdir()} == named
    assert len(named) == 5 and "sdpa seed=0" not in named


def multiplexer(outputs: Path) -> EventMultiplexer:
    """What TensorBoard has read."""
    return EventMultiplexer().AddRunsFromDirectory(str(outputs)).Reload()


def test_hparams_has_the_settings_of_all_runs_and_those_that_differ_first(tmp_path: Path) -> None:
    every: list[dict[str, Any]] = [
        {"attn": "sdpa", "seed": 0, "n_head": 4, "lr": 1e-3},
        {"attn": "sdpa", "seed": 1, "n_head": 4, "lr": 1e-3},
        {"attn": "sdpa", "seed": 1, "n_head": 1, "lr": 1e-3, "dropout": 0.1},
    ]
    for number, told in enumerate(every):
        logger = TensorBoardLogger(tmp_path, f"run{number}", "", default_hp_metric=False)
        log_settings([logger], told)
        logger.log_metrics({"Loss/train": 3.0, "Loss/validation": 2.0, "attn/entropy": 0.5}, 1)
        logger.save()
    seen = multiplexer(tmp_path)
    context = Context(TBContext(data_provider=MultiplexerDataProvider(seen, str(tmp_path))))
    asked = RequestContext()
    tags = context.hparams_metadata(asked, "")
    shown = context.experiment_from_metadata(asked, "", True, tags, [])
    names = [info.name for info in shown.hparam_infos]
    assert names[:2] == ["n_head", "seed"]
    assert {*names} == {"attn", "seed", "n_head", "lr", "dropout"}
    assert [info.name.tag for info in shown.metric_infos][:2] == ["Loss/train", "Loss/validation"]
    assert "custom_scalars__config__" in seen.Runs()["run0"]["tensors"]


@pytest.mark.slow
def test_the_board_ends_when_it_is_told_to(outputs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attnlab", "board", str(outputs), "--port", "0"]
    said = tmp_path / "said"
    with said.open("w") as stream:
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        board = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
    deadline = time.monotonic() + 120
    while "http://" not in said.read_text() and time.monotonic() < deadline:
        assert board.poll() is None, said.read_text()
        time.sleep(0.2)
    assert [*tmp_path.glob("attnlab-board-*/sdpa seed=1 (unscaled)/.hydra")]
    board.send_signal(signal.SIGTERM)
    assert board.wait(60) == 0
    assert not [*tmp_path.glob("attnlab-board-*")]
