"""Optimizers and schedules: their numbers, and which parameter belongs to which."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from attnlab.attention.core import build_mask, causal, sdpa
from attnlab.settings.bind import for_lightning
from attnlab.settings.types import read_settings
from attnlab.training.config import read_config
from attnlab.training.optimizers import (
    Muon,
    cosine,
    linear,
    orthogonalize,
    schedule,
)
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


def ids_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """Which parameters an optimizer changes."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def test_muon_gets_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    config = read_config(settings("preset=fast", "model.bias=true"))
    net = config.model(65)
    muon, adamw = map(ids_of, config.optimizer(net, 100)[0].parts)
    names = {id(p): name for name, p in net.named_parameters()}
    kinds = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc.weight", "mlp.proj.weight")
    assert {names[p] for p in muon} == {f"blocks.{i}.{kind}" for i in range(4) for kind in kinds}
    assert adamw == names.keys() - muon


SHAPES = [(12, 4), (4, 4), (4, 12), (12, 4), (1, 5)]


def moved(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> list[nn.Parameter]:
    """Matrices after four steps of an optimizer; the second has no gradient."""
    torch.manual_seed(0)
    matrices = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = make(matrices)
    for step in range(4):
        for p in matrices:
            p.grad = p.detach().cos() + step
        matrices[1].grad = None
        optimizer.step()
    return matrices


# On every machine, whatever its processor computes in. bf16 has 8 bits.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has Muon since 2.9")
def test_muon_equals_pytorchs_muon(dtype: torch.dtype) -> None:
    theirs = moved(lambda p: torch.optim.Muon(p, 0.1, 0.2, 0.9, adjust_lr_fn="match_rms_adamw"))
    ours = moved(lambda p: Muon(p, 0.1, 0.2, 0.9, 5, dtype))
    tolerance = 2e-3 if dtype == torch.bfloat16 else 1e-2  # PyTorch's is in bf16
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "within"), [(torch.bfloat16, 0.1), (torch.float32, 1e-5)])
@pytest.mark.parametrize("shape", [(2, 6, 3), (2, 3, 6), (1, 4, 4)])
def test_newton_schulz_is_a_polynomial_of_the_singular_values(
    dtype: torch.dtype, within: float, shape: tuple[int, ...]
) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    U, s, Vh = torch.linalg.svd(matrices.double(), full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    expected = U @ s.diag_embed() @ Vh
    found = orthogonalize(matrices, 5, dtype)
    assert found.dtype == dtype
    assert float((found - expected).abs().max()) < within


@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT"])
def test_a_cpu_computes_in_fp32_whatever_its_processor_has(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, has, lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    for preset in ("fast", "tiny"):
        cfg = settings(f"preset={preset}", "trainer.accelerator=cpu")
        assert for_lightning(read_settings(cfg).trainer)["precision"] == "32-true"
    usual = moved(lambda p: Muon(p, 0.1, 0.2, 0.9, 5))
    exact = moved(lambda p: Muon(p, 0.1, 0.2, 0.9, 5, torch.float32))
    assert all(map(torch.equal, usual, exact))


@pytest.mark.parametrize("T", [16, 512])
def test_the_fused_kernel_computes_bf16_in_fp32_on_a_cpu(T: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, T, 8).bfloat16()
    given = {"mask": build_mask(causal, T), "scale": 0.3, "dropout": 0.0}
    exact = sdpa(q.float(), k.float(), v.float(), **given)
    assert torch.equal(sdpa(q, k, v, **given), exact.bfloat16())
