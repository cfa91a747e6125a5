"""Probes in runs: what they log and record, that they change nothing, and what ends a run."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnlab.attention import AttentionConfig, SelfAttention, peek_one
from attnlab.errors import BadInput
from attnlab.plotting.maps import shades
from attnlab.probes import history
from attnlab.probes.base import ProbedModule
from attnlab.probes.capture import View, view_of
from attnlab.probes.history import as_history, snapshot
from attnlab.probes.history_file import patterns_of, read_history
from attnlab.probes.learning_curve import StopWhenSolved
from attnlab.probes.patterns import PIXELS, Gradients, heatmaps
from attnlab.rng import generator
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.conftest import SMALL, settings

ALL = (
    "probes=default probes.patterns.every=1 probes.patterns.heads=true probes.gradients.every=1 "
    "probes.history.chars=9 probes.history.steps=3 model.dropout=0.1"
).split()


@pytest.mark.slow
@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_probes_change_no_bit_of_a_training(train: Any, optim: str) -> None:
    changed = f"optim={optim}"
    plain = train("model.dropout=0.1", changed, folder="plain")
    seen = train(*ALL, changed, "logger=csv", folder="seen")
    other = train("model.dropout=0.1", changed, "seed=1", folder="other")  # a planted difference
    files = [result.folder / "checkpoints" / "last.ckpt" for result in (plain, seen, other)]
    theirs, ours, others = (torch.load(file)["state_dict"] for file in files)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert not all(torch.equal(x, theirs[name]) for name, x in others.items())
    for name in ("val_loss", "train_loss", "best_val_loss"):
        assert plain.metrics[name] == seen.metrics[name]


def test_what_a_run_logs_and_records(train: Any) -> None:
    result = train(*ALL, "attn=peek_one", "logger=tensorboard")
    events = EventAccumulator(str(result.folder)).Reload()
    points = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    for tag, steps in {
        "attn/entropy": [0, 1, 2, 3, 4],  # no step twice, though validations measure, too
        "attn/future_mass/L1H0": [0, 1, 2, 3, 4],
        "layers/entropy/L0": [0, 1, 2, 3, 4],
        "grad/L1": [1, 2, 3, 4],
    }.items():
        assert [point.step for point in points[tag]] == steps
    last = {tag: found[-1].value for tag, found in points.items()}
    metrics, probes = result.metrics, result.metrics["probes"]
    assert probes["attn/entropy"] == pytest.approx(last["attn/entropy"], rel=1e-6)
    heads = [last[f"attn/future_mass/L{n}H{h}"] for n in (0, 1) for h in (0, 1)]
    assert probes["attn/future_mass"] == pytest.approx(sum(heads) / 4, rel=1e-6)
    largest = [last[f"attn/max_score/L{n}H{h}"] for n in (0, 1) for h in (0, 1)]
    assert probes["attn/max_score"] == pytest.approx(max(largest), rel=1e-6)
    assert [point.step for point in points["val/max_logit"]] == [2, 4]
    assert probes["max_logit"] == pytest.approx(last["val/max_logit"], rel=1e-6) and max(largest)
    assert [image.step for image in events.Images("pattern/L1H0 to H1")] == [0, 2, 4]
    samples = events.Tensors("sample/text_summary")
    assert [sample.step for sample in samples] == [2, 4]
    texts = [sample.tensor_proto.string_val[0].decode() for sample in samples]
    assert [len(text.replace("\n    ", "\n")) for text in texts] == [4 + 1 + 50] * 2  # indented
    losses = np.array(probes["loss_by_position"])  # 400 characters in windows of 16
    assert losses.shape == (16,) and abs(losses.mean() - metrics["val_loss"]) < 0.01
    kept = read_history(result.folder)
    assert kept is not None and len(kept["tokens"]) == 9 and kept["heads"] == [2, 2]
    assert [x["step"] for x in kept["snapshots"]] == [0, round(4 * 0.5**1.7), 4]
    future = kept["snapshots"][-1]["measures"]["future_mass"]
    assert np.shape(future) == (2, 2) and np.min(future) > 0


def test_gradients_are_the_norms_of_each_block() -> None:
    blocks = torch.nn.ModuleList(torch.nn.Linear(3, 2, bias=bias) for bias in (True, False))
    calls: list[Any] = []
    logger = SimpleNamespace(log_metrics=lambda values, step: calls.append((values, step)))
    trainer: Any = SimpleNamespace(global_step=4, loggers=[logger], is_global_zero=True)
    x = torch.randn(5, 3, generator=generator(0, "x"))
    (blocks[0](x).square().sum() * 3).backward()  # the second block gets no gradient
    grads = [p.grad for p in blocks[0].parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
    probe = Gradients(every=5)
    net = SimpleNamespace(blocks=blocks)
    lit: Any = ProbedModule()
    vars(lit).update(net=net, data=None, val_losses={})
    for trainer.global_step in (4, 5):  # the latter is no multiple
        probe.on_before_optimizer_step(trainer, lit)
    trainer.global_step, trainer.is_global_zero = 9, False  # another process logs nothing
    probe.on_before_optimizer_step(trainer, lit)
    assert calls == [({"grad/L0": pytest.approx(norm, rel=1e-3)}, 5)]


# ---- tasks

TASK = "data=copy model.block_size=16 data.symbols=2 data.batch_size=32 optim.lr=0.02".split()
CURVE = [*SMALL, *TASK, *"probes=curve probes.curve.every=2 probes.curve.sequences=8".split()]
CURVE.remove("data=text")


def learned(folder: Path, *overrides: str) -> Any:
    """metrics.json of a run of a task with probes=curve."""
    config = read_config(settings(*CURVE, *overrides))
    return run(config, folder, variant="sdpa", overrides=overrides).metrics


def test_a_task_has_a_curve_and_a_run_ends_when_it_is_solved(tmp_path: Path) -> None:
    solved = ["callbacks=solved", "trainer.max_steps=20", "trainer.val_check_interval=20"]
    metrics = learned(tmp_path / "early", *solved, "callbacks.solved.accuracy=0.0")
    assert metrics["steps"] == 4 and metrics["status"] == "stopped"
    never = [*solved, "callbacks.solved.accuracy=1.1", "trainer.val_check_interval=8"]
    metrics = learned(tmp_path / "never", *never)
    assert metrics["steps"] == 20 and metrics["status"] == "finished"
    curve = metrics["probes"]["curve"]
    assert len(curve["accuracy"]) == 10 and set(curve["losses"]) == {"8", "16", "20"}
    right = np.array(curve["accuracy"]) * 8 * 8  # of 8 sequences with 8 answers
    assert np.abs(right - right.round()).max() < 0.01 and 0 < right.min() <= right.max() <= 64
    assert curve["losses"]["20"] == metrics["val_loss"]
    with pytest.raises(BadInput, match="probes=curve"):
        StopWhenSolved(1.0).on_train_batch_end(SimpleNamespace(callbacks=[]))


# ---- history.json


def seen_by(may_attend: Any) -> list[View]:
    x, views = torch.randn(1, 9, 16, generator=generator(0, "x")), []
    for n in range(2):
        layer = SelfAttention(AttentionConfig(16, 2 * (n + 1), 9), may_attend=may_attend)
        with torch.no_grad():
            views.append(view_of(n, layer, (x,)))
    return views


def test_a_history_gives_its_patterns_back(tmp_path: Path) -> None:
    views = seen_by(peek_one)
    views[0].pattern[0, 1] *= -1
    views[0].pattern[0, 0, 3, 4] = 1e-9  # a leak that rounds to nothing
    views[1].pattern[0, 3, 2] = math.nan
    content = as_history("to be, or", views, [snapshot(views, 0), snapshot(views, 5, 1.25)])
    (tmp_path / "history.json").write_text(json.dumps(content))
    kept = read_history(tmp_path)
    assert kept == content
    found = patterns_of(kept)
    assert list(found) == ["L0H0", "L0H1", "L1H0", "L1H1", "L1H2", "L1H3"]
    for name, (pattern, mask) in found.items():
        view = views[int(name[1])]
        real = view.pattern[0, int(name[3])].numpy()
        np.testing.assert_allclose(pattern, real, rtol=0, atol=0.004)
        assert np.array_equal(mask, view.mask.numpy())
        assert ((pattern != 0) >= ((real != 0) & ~mask)).all()
    assert kept["snapshots"][1]["loss"] == 1.25 and kept["snapshots"][0]["loss"] is None
    assert kept["snapshots"][0]["measures"]["entropy"][1][3] is None  # NaN
    assert history.first_equal(torch.tensor([1.0, 2, 1, 2])) == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c["snapshots"][0].update(weights="AAAA"),
        lambda c: c["snapshots"][0].pop("negative"),
        lambda c: c.update(heads=[3, 4]),
        lambda c: c.update(tokens=5),
        lambda c: c["snapshots"].append(None),
    ],
)
def test_a_damaged_history_is_named(spoil: Any, tmp_path: Path) -> None:
    views = seen_by(peek_one)
    content = as_history("to be, or", views, [snapshot(views, 0)])
    spoil(content)
    assert read_history(tmp_path) is None
    (tmp_path / "history.json").write_text(json.dumps(content))
    with pytest.raises(BadInput):
        read_history(tmp_path)


def test_heatmaps_show_every_head() -> None:
    view = seen_by(peek_one)[1]
    page = heatmaps(view)
    height, width, _ = page.shape
    heads = np.split(page, 4, axis=1)
    assert height >= 9 * PIXELS and width >= 4 * 9 * PIXELS
    for head, picture in enumerate(heads):  # a pixel in the middle of each weight
        middles = slice(PIXELS // 2, 9 * PIXELS, PIXELS)
        colors = shades(view.pattern[0, head].numpy(), view.mask.numpy())
        assert np.array_equal(picture[middles, middles], colors)
    assert not np.array_equal(heads[0], heads[1])
