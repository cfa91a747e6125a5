"""What TensorBoard shows of a sweep, requested over its HTTP interface."""

import json
import math
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning.pytorch as L
import pytest
from lightning.pytorch.loggers import WandbLogger

from attnlab.runs.reading import read_runs
from attnlab.runs.run_directory import folder_for
from attnlab.training.config import read_config
from attnlab.training.loggers import close_services, hyperparameters, shown
from attnlab.training.run import run
from tests.conftest import SMALL, plain, settings
from tests.probes.test_training_probes import LOGGED

VARIANTS = ("sdpa", "torch_mha", "strict_flip")
SEEDS = (0, 1)
QUESTION = {
    "experimentName": "",
    "allowedStatuses": [
        "STATUS_UNKNOWN",
        "STATUS_SUCCESS",
        "STATUS_FAILURE",
        "STATUS_RUNNING",
    ],
    "colParams": [],
    "startIndex": 0,
    "sliceSize": 100,
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    """Three variants, one with other keys and one that diverges, with two seeds each."""
    root = tmp_path_factory.mktemp("outputs")
    for variant in VARIANTS:
        for seed in SEEDS:
            changed = [f"attn={variant}", f"seed={seed}"]
            cfg = settings(*SMALL, f"data.path={text_file}", *LOGGED, f"outputs={root}", *changed)
            run(
                read_config(cfg),
                folder_for(cfg, variant, changed),
                variant=variant,
                overrides=changed,
            )
    return root


@pytest.fixture(scope="module")
def board(outputs: Path) -> Iterator[str]:
    """The address of a TensorBoard that has read all runs."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(outputs)]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = (re.search(r"http://\S+:\d+/", line) for line in server.stdout)
        address = next(match[0] for match in found if match)
        end = time.monotonic() + 60
        while time.monotonic() < end and len(ask(address, "data/runs")) < 6:
            time.sleep(0.3)
        yield address
    finally:
        server.terminate()
        server.wait()


def ask(address: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.long
def test_tensorboard_lists_runs_by_their_changed_settings(board: str) -> None:
    expected = {f"lab/attn={variant}/seed={seed}" for variant in VARIANTS for seed in SEEDS}
    assert set(ask(board, "data/runs")) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("plugin", "tag"),
    [
        ("scalars/tags", "attn/entropy/L0H1"),
        ("scalars/tags", "hp/val_loss"),
        ("images/tags", "pattern/L1"),
        ("histograms/tags", "row_entropy/L0"),
    ],
)
def test_every_run_has_scalars_images_and_histograms(board: str, plugin: str, tag: str) -> None:
    runs = ask(board, f"data/plugin/{plugin}")
    assert len(runs) == 6
    diverged = {run for run in runs if "strict_flip" in run}
    for name, tags in runs.items():  # a histogram of NaN does not exist
        assert tag in tags or (name in diverged and "histograms" in plugin), name


@pytest.mark.long
def test_every_run_has_a_text(board: str) -> None:
    tags = ask(board, "data/plugin/text/tags").values()
    assert list(tags) == [["sample/text_summary"]] * 6


@pytest.mark.long
def test_heatmaps_can_be_seen(board: str) -> None:
    query = "data/plugin/images/images?tag=pattern/L0&run=lab/attn%3Dsdpa/seed%3D0&sample=0"
    images = ask(board, query)
    assert [image["step"] for image in images] == [0, 2, 4]
    address = f"{board}data/plugin/images/individualImage?{images[0]['query']}"
    answer = urllib.request.urlopen(address)
    assert answer.read(4) == b"\x89PNG"


@pytest.mark.long
def test_charts_put_variants_side_by_side(board: str) -> None:
    layout = ask(board, "data/plugin/custom_scalars/layout")
    charts = {chart["title"] for category in layout["category"] for chart in category["chart"]}
    assert len(layout["category"]) == 3  # every run wrote it, and it is there once
    assert {"validation loss", "effective heads", "future mass (0: causal)"} <= charts
    query = (
        "data/plugin/custom_scalars/scalars?tag=%5Eattn/entropy%24&run=lab/attn%3Dsdpa/seed%3D0"
    )
    assert list(ask(board, query)["tag_to_events"]) == ["attn/entropy"]


@pytest.mark.long
def test_hparams_has_a_row_a_variant_with_the_mean_of_its_seeds(board: str, outputs: Path) -> None:
    groups = ask(board, "data/plugin/hparams/session_groups", QUESTION)["sessionGroups"]
    assert {group["name"] for group in groups} == {f"lab/attn={variant}" for variant in VARIANTS}
    runs = read_runs(outputs)
    for group in groups:
        assert len(group["sessions"]) == 2
        variant = group["hparams"]["attn"]
        found = {m["name"]["tag"]: float(m["value"]) for m in group["metricValues"]}
        assert set(found) == {f"hp/{name.removeprefix('attn/')}" for name in shown()["results"]}
        losses = [r.values["val_loss"] for r in runs if r.values["attn"] == variant]
        if variant == "strict_flip":
            assert math.isnan(found["hp/val_loss"]) and found["hp/diverged"] == 1
        else:
            assert found["hp/val_loss"] == pytest.approx(sum(losses) / 2, rel=1e-6)
            assert found["hp/diverged"] == 0


@pytest.mark.long
def test_hparams_has_few_columns_before_the_loss_and_all_settings_for_every_run(
    board: str,
) -> None:
    experiment = ask(board, "data/plugin/hparams/experiment", {"experimentName": ""})
    columns = [info["name"] for info in experiment["hparamInfos"]]
    assert columns == ["attn", "lr", "n_head", "other"]  # five are shown, so the loss is in view
    assert experiment["metricInfos"][0]["displayName"] == "loss"
    groups = ask(board, "data/plugin/hparams/session_groups", QUESTION)["sessionGroups"]
    for group in groups:
        assert set(group["hparams"]) == set(columns)
        assert "attn.kernel=" in group["hparams"]["other"]


def test_a_column_has_one_type() -> None:
    for overrides in ((), ("attn.scale=1.0",), ("model.qk_std=0.1",), ("attn=torch_mha",)):
        for key, value in hyperparameters(plain(settings(*overrides)), "x").items():
            assert isinstance(value, float if key in shown()["columns"] else str), key


def test_the_loss_comes_first_and_is_the_last_one() -> None:
    results = [*shown()["results"].items()][:2]
    assert results == [("val_loss", "loss"), ("best_val_loss", "lowest loss")]


@pytest.mark.parametrize("interrupted", [False, True])
def test_wandb_is_told_whether_a_training_was_completed(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(finish=lambda exit_code: codes.append(exit_code))
    )
    logger = WandbLogger.__new__(WandbLogger)
    close_services(cast(L.Trainer, SimpleNamespace(loggers=[logger], interrupted=interrupted)))
    assert codes == [int(interrupted)]
