"""Optimizers and schedules: their numbers, and which parameter belongs to which."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from attnlab.training.config import read_config
from attnlab.training.optimizers import Muon, cosine, linear, schedule
from tests.conftest import settings


@pytest.mark.parametrize(("decay", "quarter"), [(cosine, 0.8535534), (linear, 0.75)])
def test_a_decay_falls_from_1_to_0(decay: Callable[[float], float], quarter: float) -> None:
    values = [decay(x) for x in (0, 0.25, 0.5, 1)]
    assert values == pytest.approx([1, quarter, 0.5, 0], abs=1e-7)


def test_a_schedule_warms_up_and_ends_at_its_floor() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    rates = schedule(optimizer, max_steps=10, warmup_steps=3, floor=0.1, decay=linear)
    seen = []
    for _ in range(12):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates.step()
    assert seen[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert seen[10:] == pytest.approx([0.2, 0.2])


def test_a_rate_that_rises_is_named() -> None:
    with pytest.warns(UserWarning, match="min_lr"):
        schedule(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.01), 100, 0, 10.0, cosine)


def test_weight_decay_is_on_matrices_only() -> None:
    config = read_config(settings("model.bias=true"))
    net = config.model(65)
    matrices, vectors = config.optimizer(net, 100)[0].param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(net.parameters()))


def test_muon_gets_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    config = read_config(settings("preset=fast", "model.bias=true"))
    net = config.model(65)
    muon, adamw = (
        {id(p) for group in part.param_groups for p in group["params"]}
        for part in config.optimizer(net, 100)[0].parts
    )
    names = {id(p): name for name, p in net.named_parameters()}
    kinds = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc.weight", "mlp.proj.weight")
    assert {names[p] for p in muon} == {f"blocks.{i}.{kind}" for i in range(4) for kind in kinds}
    assert adamw == names.keys() - muon


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
