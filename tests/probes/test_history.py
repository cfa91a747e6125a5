"""history.json has each snapshot of the patterns once, also after interruptions."""

import base64
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention.masks import build_mask, causal
from attnlab.data.corpora import encode
from attnlab.probes import training_probes
from attnlab.probes.capture import views
from attnlab.probes.snapshots import packed, quantized
from attnlab.probes.training_probes import Predictions
from attnlab.training.checkpoints import load_model
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.conftest import SMALL, settings
from tests.marks import sampled

Train = Callable[..., Any]
KEPT = ("probes=default", "probes.history.steps=4", "trainer.max_steps=6")


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "history.json").read_text())
    return content


def maps(content: dict[str, Any], number: int) -> Tensor:
    """One snapshot of a model whose layers have as many heads each, (layers, H, T, T) bytes."""
    T, heads = len(content["tokens"]), content["heads"]
    found = zlib.decompress(base64.b64decode(content["snapshots"][number]["weights"]))
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).view(len(heads), heads[0], T, T)


def steps(content: dict[str, Any]) -> list[int]:
    return [each["step"] for each in content["snapshots"]]


@pytest.fixture(scope="module")
def kept(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a history; tests that write into it copy it first."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    cfg = settings(*SMALL, f"data.path={text_file}", *KEPT)
    run(read_config(cfg), folder, variant="sdpa", overrides=KEPT)
    return folder


def test_the_last_snapshot_is_the_trained_model(kept: Path) -> None:
    content = read(kept)
    net, alphabet = load_model(kept)
    text = "".join(content["tokens"])
    seen = list(views(net, encode(text, alphabet)[None]))
    weights = (maps(content, -1) / 254.0).square()
    patterns = torch.cat([view.pattern for view in seen])
    assert torch.allclose(weights, patterns, atol=0.5 / 127)
    assert content["snapshots"][-1]["measures"]["future_mass"] == [[0, 0], [0, 0]]
    largest = content["snapshots"][-1]["measures"]["largest_weight"]
    rows = patterns[..., 7:, :].amax(-1).mean(-1)
    assert largest == pytest.approx(rows.numpy(), rel=1e-4)


def test_snapshots_are_early_and_at_both_ends(kept: Path, train: Train) -> None:
    assert steps(read(kept)) == [0, 1, 3, 6]
    assert steps(read(train(*KEPT, "probes.history.steps=1", folder="b").folder)) == [0, 6]
    assert steps(read(train(*KEPT, "probes.history.steps=99", folder="c").folder)) == list(
        range(7)
    )


def test_the_text_is_the_start_of_the_validation_text(train: Train, text_file: Path) -> None:
    content = read(train(*KEPT, "probes.history.chars=9").folder)
    text = text_file.read_text()
    assert "".join(content["tokens"]) == text[int(len(text) * 0.9) :][:9]


def test_steps_0_keeps_no_history(train: Train) -> None:
    assert not (train("probes=light").folder / "history.json").exists()


@pytest.mark.parametrize("stop_at", sampled([1, 3, 5], lambda stop_at: stop_at == 3))
def test_a_resumed_run_has_each_snapshot_once(
    stop_at: int, train: Train, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == stop_at:
            raise Stop

    overrides = (*KEPT, "checkpoint_every=2", "trainer.val_check_interval=6")
    whole = train(*overrides, folder="whole").folder
    config = read_config(small(*overrides))
    with monkeypatch.context() as change, pytest.raises(Stop):
        change.setattr(Predictions, "on_train_batch_start", stop, raising=False)
        run(config, tmp_path / "run", variant="sdpa")
    run(config, tmp_path / "run", variant="sdpa")
    assert read(tmp_path / "run") == read(whole)


def test_a_run_that_resumes_with_another_text_starts_its_history_again(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 4:
            raise KeyError

    with monkeypatch.context() as change, pytest.raises(KeyError):
        change.setattr(Predictions, "on_train_batch_start", stop, raising=False)
        run(read_config(small(*KEPT, "checkpoint_every=2")), tmp_path / "run", variant="sdpa")
    other = small(*KEPT, "checkpoint_every=2", "probes.history.chars=5")
    run(read_config(other), tmp_path / "run", variant="sdpa")
    content = read(tmp_path / "run")
    assert (len(content["tokens"]), steps(content)) == (5, [6])


def test_a_continued_run_keeps_as_many_snapshots(kept: Path, train: Train) -> None:
    steps_12 = ("probes=default", "probes.history.steps=4", "trainer.max_steps=12")
    later = train(*steps_12, f"continue_from={kept}", folder="later").folder
    assert steps(read(later)) == [0, 1, 6, 12]  # 2 is due, and 1 is the nearest
    assert read(later)["snapshots"][:2] == read(kept)["snapshots"][:2]


def test_force_replaces_the_history(kept: Path, train: Train, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "run")
    first = read(kept)
    folder = train(*KEPT, "force=true", "optim.lr=0.1").folder
    assert steps(read(folder)) == steps(first)
    assert read(folder)["snapshots"][-1] != first["snapshots"][-1]
    assert not (train("force=true").folder / "history.json").exists()


def test_nan_stays_nan(train: Train) -> None:
    result = train("attn=strict_flip", *KEPT)
    assert result.metrics["status"] == "diverged"
    content = read(result.folder)
    assert (maps(content, 0)[:, :, -1] == 255).all()  # the query that sees no key
    assert content["snapshots"][0]["measures"]["entropy"] == [[None, None], [None, None]]


def test_equal_heads_are_named(kept: Path, train: Train) -> None:
    identical = train("attn=identical_heads", *KEPT).folder
    for folder, equal in ((identical, [0, 0]), (kept, [0, 1])):
        assert all(each["equal"] == [equal, equal] for each in read(folder)["snapshots"])


def test_many_heads_have_a_shorter_text_and_fewer_snapshots(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_probes, "SHORTEST", 8)
    monkeypatch.setattr(training_probes, "MOST_WEIGHTS", 4 * 4 * 10**2)  # of 4 heads
    content = read(train(*KEPT, folder="shorter").folder)
    assert (len(content["tokens"]), len(content["snapshots"])) == (10, 4)
    monkeypatch.setattr(training_probes, "MOST_WEIGHTS", 3 * 4 * 8**2)
    content = read(train(*KEPT, folder="fewer").folder)
    assert (len(content["tokens"]), len(content["snapshots"])) == (8, 3)


def test_a_default_history_is_below_a_megabyte() -> None:
    """For rows without structure: Gaussian scores, all keys visible."""
    stream = torch.Generator().manual_seed(0)
    T = 53  # of preset tiny: 16 heads, 20 snapshots
    scores = torch.randn(16, T, T, generator=stream)
    everything = torch.ones(T, T, dtype=torch.bool)
    maps = 20 * len(packed([quantized(scores.softmax(-1), everything)]))
    measures = 20 * 11 * 16 * len("0.12345, ")
    assert 20 * 16 * T * T < training_probes.MOST_WEIGHTS < 20 * 16 * (T + 1) ** 2
    assert maps + measures < 1e6


def test_bytes_preserve_small_weights_and_signs() -> None:
    mask = build_mask(causal, 3)
    pattern = torch.tensor([[[1, 0, 1e-9], [0.25, 0.75, 0], [torch.nan, 0, 1e-9]]])
    assert quantized(pattern, mask).tolist() == [[[254, 0, 1], [127, 220, 0], [255, 0, 0]]]
    out_of_range = quantized(torch.tensor([[[1.5, 0], [-0.5, 1]]]), torch.ones(2, 2).bool())
    assert out_of_range.tolist() == [[[254, 0], [180, 254]]]  # signs are kept apart
    p = torch.linspace(0, 1, 1001)[None, None]
    back = (quantized(p, torch.ones_like(p, dtype=torch.bool)) / 254.0).square()
    assert float((back - p).abs().max()) < 0.004
    assert np.diff(back.flatten()).min() >= 0
