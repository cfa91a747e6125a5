"""No variant uses an operation that PyTorch documents as raising on CUDA with deterministic
algorithms, forward or backward. `AsOnCuda` refuses these operations on any device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention import additions, delta, weights
from attnlab.attention.ops import running_sum
from tests.attention.layers import VARIANTS, C, layer_of, memo_of, x_of
from tests.gpu import AsOnCuda


def train(variant: str) -> Any:
    """A forward and a backward pass of a layer under the mode, in fp32."""
    layer = layer_of(variant).float().train()
    x = x_of(torch.float32).requires_grad_()
    with AsOnCuda():
        memo = memo_of(layer, torch.float32)
        layer(x, *memo).square().sum().backward()
        layer.pattern(x, *memo)
    return layer


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_trains_as_on_cuda_and_every_parameter_gets_a_gradient(variant: str) -> None:
    for name, parameter in train(variant).named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
        if variant == "none" and "qkv" in name:  # a query that sees one key needs no scores
            unused, used = parameter.grad.abs().split([2 * C, C])
            assert unused.max() < 1e-6 * used.max()


def by_cumsum(x: Tensor, dim: int = -1) -> Tensor:
    return x.cumsum(dim)


@pytest.mark.parametrize("variant", ["forgetting", "stick_breaking", "kda", "sparsemax"])
def test_a_cumsum_is_refused(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (additions, delta, weights):
        monkeypatch.setattr(module, "running_sum", by_cumsum)
    with pytest.raises(RuntimeError, match="cumsum has no deterministic"):
        train(variant)


PLANTED: dict[str, Callable[[Tensor], Tensor]] = {
    "median": lambda x: x.median(-1).values,
    "scatter_reduce": lambda x: x.scatter_reduce(-1, x.argsort(-1), x, "prod"),
    "upsample_linear1d": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "cumprod": lambda x: x.relu().prod(-1),  # in the backward pass only
}


@pytest.mark.parametrize("name", PLANTED)
def test_other_documented_operations_are_refused(name: str) -> None:
    with AsOnCuda(), pytest.raises(RuntimeError, match=f"^{name} has no deterministic"):
        PLANTED[name](x_of().requires_grad_()).sum().backward()


@pytest.mark.parametrize("dim", [-1, -2])
def test_a_running_sum_has_the_bits_of_cumsum(dim: Any) -> None:
    """In fp32 on a CPU, also of its gradient, and of its memory layout."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, 64, 80, generator=stream) * 3
    results = []
    for of in (by_cumsum, running_sum):
        own = x.clone().requires_grad_()
        y = of(own, dim)
        (grad,) = torch.autograd.grad((y * x.flip(0)).sum(), own)
        results.append((y, grad))
    (y, grad), (ours, our_grad) = results
    assert torch.equal(y, ours) and torch.equal(grad, our_grad)
    assert y.stride() == ours.stride()
