"""Optimizers and schedules: parameter groups, and bit-identical resuming."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from torch import nn

from attnlab.errors import BadInput
from attnlab.training.checkpoints import read_checkpoint
from attnlab.training.config import read_config
from attnlab.training.optimizers import Muon, Together, check, cosine, linear, schedule
from attnlab.training.run import run
from tests.conftest import settings, weights_of


@pytest.mark.parametrize("decay", [cosine, linear])
def test_a_decay_decreases_from_1_to_0(decay: Callable[[float], float]) -> None:
    values = [decay(i / 10) for i in range(11)]
    assert (values[0], values[-1]) == (1, pytest.approx(0, abs=1e-12))
    assert values == sorted(values, reverse=True)
    assert decay(0.5) == pytest.approx(0.5)


def test_a_schedule_warms_up_and_ends_at_min_lr() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    rates = schedule(optimizer, max_steps=10, warmup_steps=3, floor=0.1, decay=linear)
    seen = []
    for _ in range(11):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates.step()
    assert seen[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert seen[10] == pytest.approx(0.2)


def test_muon_gets_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    cfg = settings("preset=fast", "model.bias=true")
    net = read_config(cfg).model(65)
    optimizer, _ = read_config(cfg).optimizer(net, 100)
    muon, adamw = optimizer.parts
    names = {id(p): name for name, p in net.named_parameters()}
    by_muon = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    by_adamw = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    kinds = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc.weight", "mlp.proj.weight")
    assert by_muon == {f"blocks.{i}.{kind}" for i in range(4) for kind in kinds}
    assert by_adamw == set(names.values()) - by_muon


def test_muons_update_is_near_orthogonal_and_of_adamws_size() -> None:
    """Singular values are about rate * 0.2 sqrt(max(rows, columns)), entries about 0.2 rate."""
    cfg = settings("preset=fast", "optim.weight_decay=0.0", "optim.warmup_steps=0", "optim.lr=0.1")
    net = read_config(cfg).model(65)
    optimizer, _ = read_config(cfg).optimizer(net, 100)
    weight = net.get_parameter("blocks.0.mlp.fc.weight")  # (512, 128)
    before = weight.detach().clone()
    weight.grad = torch.randn(512, 128)
    optimizer.step()
    update = before - weight.detach()
    sizes = torch.linalg.svdvals(update) / (0.1 * 0.2 * 512**0.5)
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3
    assert update.square().mean().sqrt() == pytest.approx(0.1 * 0.2, rel=0.25)


def test_a_combined_step_is_a_step_of_each_optimizer() -> None:
    def pair() -> list[nn.Parameter]:
        torch.manual_seed(0)
        return [nn.Parameter(torch.randn(4, 4)) for _ in range(2)]

    def parts(p: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(p[:1], lr=0.1, momentum=0.9), torch.optim.AdamW(p[1:], lr=0.2)]

    ours, theirs = pair(), pair()
    together, apart = Together(parts(ours)), parts(theirs)
    for _ in range(3):
        for p in (*ours, *theirs):
            p.grad = p.detach().clone()
        together.step()
        for part in apart:
            part.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_resumed_run_with_muon_is_bit_identical(
    small: Callable[..., DictConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnlab.training.lightning_module import GPTModule

    fast = ["optim=muon", "attn.qk_norm=true", "model.norm=rms_norm"]
    cfg = small(*fast, "trainer.max_steps=8", "checkpoint_every=3", "optim.min_lr=0.0")
    run(read_config(cfg), tmp_path / "whole", variant="sdpa")

    def stops_at_5(self: GPTModule, batch: object, batch_idx: int) -> None:
        if batch_idx == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(GPTModule, "on_train_batch_start", stops_at_5)
        run(read_config(cfg), tmp_path / "broken", variant="sdpa")
    assert read_checkpoint(tmp_path / "broken" / "checkpoints" / "last.ckpt")["global_step"] == 4
    run(read_config(cfg), tmp_path / "broken", variant="sdpa")
    whole, broken = weights_of(tmp_path / "whole"), weights_of(tmp_path / "broken")
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optim.adamw_lr=0.0", "optim.adamw_lr = 0.0 must be a positive number"),
        ("optim.momentum=1.0", r"optim.momentum = 1.0 must be in \[0, 1\)"),
        ("optim.ns_steps=0", "optim.ns_steps = 0 must be from 1 to 99"),
        ("optim.lr=-1.0", "optim.lr = -1.0 must be a positive number"),
    ],
)
def test_numbers_out_of_range(override: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_config(settings("preset=fast", override))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has Muon since 2.9")
def test_muon_equals_pytorchs_muon() -> None:
    shapes = [(12, 4), (4, 4), (4, 12), (12, 4), (1, 5)]

    def matrices() -> list[nn.Parameter]:
        torch.manual_seed(0)
        return [nn.Parameter(torch.randn(shape)) for shape in shapes]

    ours, theirs = matrices(), matrices()
    stacked = Muon(ours, 0.1, 0.2, 0.9, 5)
    one_by_one = torch.optim.Muon(theirs, 0.1, 0.2, 0.9, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad, b.grad = a.detach().cos() + step, b.detach().cos() + step
        ours[1].grad = theirs[1].grad = None
        stacked.step()
        one_by_one.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)  # products in bf16: 8 bits


@pytest.mark.long
def test_the_fast_preset_reaches_nanogpts_loss(tmp_path: Path) -> None:
    """1.898 is the loss of nanoGPT's checkpoint of this size in the same full pass."""
    cfg = settings("preset=fast", "trainer.accelerator=cpu", "trainer.enable_progress_bar=false")
    metrics = run(read_config(cfg), tmp_path / "run", variant="sdpa").metrics
    assert metrics["parameters"] < 810_000
    assert metrics["val_loss"] < 1.898


def test_a_rate_that_rises_is_named() -> None:
    with pytest.warns(UserWarning, match=r"optim.min_lr = 0.1 is above optim.lr = 0.01"):
        check(0.01, 0.1, 0, [0.9, 0.99], 0.0)
