"""Probes do not affect training, and what they log is correct."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnlab.attention.self_attention import SelfAttention
from attnlab.attention.variant import Variant, identical, identical_qkv
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes import capture, measures
from attnlab.probes.capture import attention_layers, views
from attnlab.probes.measures import random_energy
from attnlab.probes.nonfinite import first_nonfinite
from attnlab.probes.training_probes import Patterns, Predictions
from tests.conftest import TRAINABLE, settings, weights_of
from tests.contracts.test_variants import DELTA
from tests.marks import sampled

Train = Callable[..., Any]
LOGGED = (
    *("probes=heads", "probes.patterns.every=2", "probes.gradients.every=2"),
    *("probes.predictions.sample_chars=5", "probes.predictions.train_windows=4"),
)


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def gpt(seed: int = 0, **attn: Any) -> GPT:
    net = GPT(
        Variant(SelfAttention, attn),
        11,
        block_size=12,
        n_layer=2,
        n_head=2,
        n_embd=16,
        dropout=0.3,
    )
    init_weights(net, seed, "unit")
    return net


def ids(seed: int = 0, B: int = 3, T: int = 12, V: int = 11) -> torch.Tensor:
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


# ---- probes do not affect training


# Each class of layer, and a run that diverges; `make test-all` watches every variant.
WATCHED = {"torch_mha", "additive", "gqa", "strict_flip"}


def dropout_for(variant: str) -> str:
    return f"model.dropout={0.1 if variant not in DELTA else 0}"  # which recurrences refuse


@pytest.mark.parametrize("variant", sampled(TRAINABLE, WATCHED.__contains__))
def test_weights_are_bit_equal_with_and_without_probes(variant: str, train: Train) -> None:
    dropout = dropout_for(variant)
    watched = train(f"attn={variant}", dropout, *LOGGED, folder="watched")
    alone = train(f"attn={variant}", dropout, "logger=none", folder="alone")
    assert watched.metrics["status"] == alone.metrics["status"]
    if alone.metrics["status"] == "diverged":
        return  # nothing is kept of NaN weights
    ours, theirs = weights_of(watched.folder), weights_of(alone.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert watched.metrics["val_loss"] == alone.metrics["val_loss"]


@pytest.mark.long
@pytest.mark.parametrize("variant", TRAINABLE)
def test_weights_after_200_steps_are_bit_equal(variant: str, train: Train) -> None:
    steps = ("trainer.max_steps=200", "trainer.val_check_interval=50", dropout_for(variant))
    watched = train(f"attn={variant}", *steps, "probes=default", folder="watched")
    alone = train(f"attn={variant}", *steps, "logger=none", folder="alone")
    if alone.metrics["status"] == "diverged":
        assert watched.metrics["diverged_at_step"] == alone.metrics["diverged_at_step"]
        return
    ours, theirs = weights_of(watched.folder), weights_of(alone.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_capture_leaves_the_model_unchanged() -> None:
    net = gpt().train()
    net.blocks[1].eval()  # a mixed state must come back as it was
    modes = [module.training for module in net.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    capture.scalars(views(net, ids()))
    first_nonfinite(net, ids())
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate() and (states[2] == np.random.get_state()[1]).all()
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert not any(layer._forward_pre_hooks for layer in attention_layers(net))


def test_a_failed_capture_leaves_the_model_unchanged() -> None:
    net = gpt().train()
    with pytest.raises(ValueError, match="13 positions"):
        list(views(net, ids(T=13)))
    assert all(module.training for module in net.modules())
    assert not any(layer._forward_pre_hooks for layer in attention_layers(net))


def test_views_show_the_layers_own_inputs() -> None:
    net = gpt().eval()
    for view, block in zip(views(net, ids()), net.blocks, strict=True):
        x = net.embed(ids()) if view.layer == 0 else net.blocks[0](net.embed(ids()))
        assert torch.equal(view.pattern, block.attn.pattern(block.ln_1(x)))


# ---- what probes write


def test_tags_and_times(train: Train) -> None:
    folder = train("trainer.max_steps=6", "trainer.val_check_interval=3", *LOGGED).folder
    found = events(folder)
    scalars = set(found.Tags()["scalars"])
    assert {"attn/entropy", "attn/entropy/L0H1", "attn/future_mass", "attn/head_similarity"} <= (
        scalars
    )
    assert {"grad/L1", "grad/L0/q", "grad/L0/out", "update/L1/k", "val/gap"} <= scalars
    assert {"attn/effective_heads/L1", "attn/jacobian_trace_predicted", "position/last"} <= scalars
    assert [e.step for e in found.Scalars("attn/entropy")] == [0, 2, 3, 4, 6]
    assert [e.step for e in found.Scalars("grad/L0")] == [1, 2, 4, 6]
    assert [e.step for e in found.Images("pattern/L1")] == [0, 2, 6]
    assert [e.step for e in found.Images("loss_by_position")] == [3, 6]
    assert [e.step for e in found.Tensors("sample/text_summary")] == [3, 6]
    assert set(found.Tags()["histograms"]) == {
        f"{name}/L{layer}" for name in ("row_entropy", "scores") for layer in (0, 1)
    }
    heads = [found.Scalars(f"attn/entropy/L{i}H{j}")[-1].value for i in (0, 1) for j in (0, 1)]
    assert found.Scalars("attn/entropy")[-1].value == pytest.approx(sum(heads) / 4)


def test_by_default_ten_numbers_of_attention_are_logged_and_the_entropy_of_layers(
    train: Train,
) -> None:
    """TensorBoard opens the first two groups: the losses, and attention on one page of cards."""
    few, all_ = (train(f"probes={name}", folder=name) for name in ("default", "heads"))
    scalars = events(few.folder).Tags()["scalars"]
    assert {"attn/entropy", "attn/score_std", "attn/head_similarity"} <= set(scalars)
    assert len([tag for tag in scalars if tag.startswith("attn/")]) == 10
    assert sorted({tag.split("/")[0] for tag in scalars})[:2] == ["Loss", "attn"]
    heads = events(all_.folder)
    for layer in (0, 1):
        of_heads = [heads.Scalars(f"attn/entropy/L{layer}H{j}")[-1].value for j in (0, 1)]
        (*_, of_layer) = events(few.folder).Scalars(f"layers/entropy/L{layer}")
        assert of_layer.value == pytest.approx(sum(of_heads) / 2)
    assert few.metrics["probes"] == all_.metrics["probes"]  # of which claims use all measures
    assert "attn/jacobian_trace_predicted" in few.metrics["probes"]


def test_losses_are_logged_twice(train: Train) -> None:
    found = events(train(*LOGGED, "trainer.log_every_n_steps=1").folder)
    for tag, first in (("train/loss", "Loss/train"), ("val/loss", "Loss/validation")):
        points = [[(e.step, e.value) for e in found.Scalars(name)] for name in (tag, first)]
        assert points[0] == points[1] and len(points[0]) > 1


def test_light_probes_write_at_validations(train: Train) -> None:
    found = events(train("probes=light").folder)
    assert "layers/entropy/L0" in found.Tags()["scalars"]
    assert "attn/entropy/L0H0" not in found.Tags()["scalars"]
    assert [e.step for e in found.Scalars("attn/entropy")] == [0, 2, 4]
    assert found.Tags()["images"] == ["loss_by_position"]


def test_a_resumed_run_continues_its_pictures(train: Train, small: Any, tmp_path: Path) -> None:
    from attnlab.training.config import read_config
    from attnlab.training.run import run

    class Stop(Exception):
        pass

    def stop(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 4:
            raise Stop

    overrides = ("trainer.max_steps=6", "trainer.val_check_interval=3", *LOGGED)
    patch = pytest.MonkeyPatch()
    with patch.context() as change, pytest.raises(Stop):
        change.setattr(Predictions, "on_train_batch_start", stop, raising=False)
        run(read_config(small(*overrides)), tmp_path / "run", variant="sdpa")
    run(read_config(small(*overrides)), tmp_path / "run", variant="sdpa")
    steps = [e.step for e in events(tmp_path / "run").Images("pattern/L0")]
    assert steps == [0, 2, 6]


def test_loss_by_position_is_that_of_the_whole_validation(train: Train) -> None:
    metrics = train("probes=default").metrics
    curve = metrics["probes"]["loss_by_position"]
    assert len(curve) == 16
    # 399 predictions in windows of 16: the last window has 15
    weighted = sum(loss * (25 if i < 15 else 24) for i, loss in enumerate(curve)) / 399
    assert weighted == pytest.approx(metrics["val_loss"], abs=1e-4)


def test_probes_go_to_any_logger(train: Train, small: Any, tmp_path: Path) -> None:
    csv = {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": "", "version": ""}
    cfg = small(*LOGGED)
    cfg.logger = OmegaConf.create({"csv": csv})
    from attnlab.training.config import read_config
    from attnlab.training.run import run

    run(read_config(cfg), tmp_path / "run", variant="sdpa")
    assert "attn/entropy/L1H1" in (tmp_path / "run" / "metrics.csv").read_text().split("\n")[0]


@pytest.mark.parametrize(
    "setting",
    [
        "probes.patterns.every=0",
        "probes.patterns.windows=0",
        "probes.gradients.every=-1",
        "probes.predictions.train_windows=0",
        "probes.predictions.sample_chars=-1",
        "probes.history.steps=-1",
        "probes.history.chars=1",
        "probes.history.windows=0",
    ],
)
def test_bad_settings_are_named(setting: str, train: Train) -> None:
    with pytest.raises(BadInput, match=setting.split("=")[0]):
        train("probes=default", setting)


# ---- divergence


def test_strict_flip_names_the_first_layer_and_quantity(train: Train) -> None:
    result = train("attn=strict_flip", *LOGGED)
    status = json.loads((result.folder / "status.json").read_text())
    assert (status["status"], status["step"]) == ("diverged", 1)
    assert status["reason"].endswith("first in the pattern of layer 0")
    assert result.metrics["first_nonfinite"] == {"layer": 0, "quantity": "pattern"}
    found = events(result.folder)
    assert [e.step for e in found.Images("pattern/L0")] == [0, 1]
    assert math.isnan(found.Scalars("attn/entropy")[0].value)
    assert math.isnan(result.metrics["probes"]["attn/entropy"])


@pytest.mark.parametrize(
    ("name", "value", "layer", "quantity"),
    [
        ("wte.weight", math.inf, None, "weight wte.weight"),
        ("blocks.0.attn.qkv.weight", 1e30, 0, "scores"),
        ("blocks.1.attn.qkv.weight", 1e30, 1, "scores"),
        ("blocks.0.mlp.proj.weight", 3e38, 1, "input of the attention"),
    ],
)
def test_the_first_quantity_is_found(
    name: str, value: float, layer: int | None, quantity: str
) -> None:
    net = gpt()
    assert first_nonfinite(net, ids()) is None
    with torch.no_grad():
        dict(net.named_parameters())[name].fill_(value)
        if quantity == "scores":  # equal scores would be finite differences, but are infinite
            dict(net.named_parameters())[name][::2] *= -1
    assert first_nonfinite(net, ids()) == {"layer": layer, "quantity": quantity}


# ---- known properties of models


@pytest.mark.parametrize("D", [16, 32, 64, 128, 384])
def test_a_fresh_model_agrees_with_the_random_energy_model(D: int) -> None:
    """On a text without repetition, because repeated symbols make keys dependent."""
    C, T, V = 384, 256, 4096
    net = GPT(
        Variant(SelfAttention, {"scale": 1.0}),
        V,
        block_size=T,
        n_layer=1,
        n_head=C // D,
        n_embd=C,
    )
    init_weights(net, 0, "gpt2")  # small scores, far from saturation
    (view,) = views(net, ids(B=4, T=T, V=V))
    assert view.scores is not None
    std = measures.score_std(view.scores, view.mask).square().mean().sqrt().item()
    predicted = math.sqrt(D) * 0.02**2 * C
    assert std == pytest.approx(predicted, rel=0.10)
    table, _ = random_energy(predicted, torch.arange(8, T + 1))
    entropy = measures.entropy_nats(view.pattern, view.mask).mean().item()
    assert entropy == pytest.approx(table.mean().item(), rel=0.05)


@pytest.mark.parametrize("rule", [identical, identical_qkv])
def test_identical_heads_count_as_one_effective_head(rule: Any) -> None:
    net = gpt(head_init=rule)
    values = capture.scalars(views(net, ids()))
    assert values["attn/head_difference"] == 0
    assert values["attn/effective_heads"] == pytest.approx(1, abs=1e-5)
    assert values["attn/head_similarity"] == pytest.approx(1, abs=1e-5)
    assert values["attn/qk_similarity"] == pytest.approx(1, abs=1e-5)
    assert values["attn/js_divergence"] == pytest.approx(0, abs=1e-6)


@pytest.mark.long
def test_300_steps_separate_free_outputs_only(train: Train) -> None:
    steps = (
        *("trainer.max_steps=300", "trainer.val_check_interval=300", "probes=light"),
        *("model.n_head=4", "model.n_embd=64", "optim.lr=3e-3", "logger=none"),
    )
    tied = train("attn=identical_heads", *steps, folder="tied").metrics["probes"]
    free = train("attn=identical_qkv", *steps, folder="free").metrics["probes"]
    assert tied["attn/head_difference"] == 0
    assert tied["attn/effective_heads"] == pytest.approx(1, abs=1e-4)
    assert free["attn/effective_heads"] > 1.5


@pytest.mark.long
def test_with_a_flipped_mask_only_the_last_position_has_a_loss(train: Train) -> None:
    result = train(
        *("attn=flipped", "trainer.max_steps=600", "trainer.val_check_interval=600"),
        *("probes=default", "model.n_embd=64", "optim.lr=3e-3"),
    )
    curve = result.metrics["probes"]["loss_by_position"]
    assert curve[-1] > 5 * max(curve[:-1])
    found = events(result.folder)
    masses = [
        found.Scalars(f"attn/future_mass/L{i}H{j}")[-1].value for i in (0, 1) for j in (0, 1)
    ]
    assert max(masses) > 0.5


def test_every_setting_of_a_probe_is_in_its_file() -> None:
    """`probes=light` is `probes=default` with other values."""
    default, light = settings("probes=default").probes, settings("probes=light").probes
    assert {k: set(v) for k, v in default.items()} == {k: set(v) for k, v in light.items()}
    assert Patterns(every=None, heads=True, images=False, windows=1).record == {}
