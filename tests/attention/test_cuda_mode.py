"""No variant uses an operation that PyTorch documents as raising on CUDA with deterministic
algorithms, forward or backward. The mode below refuses these operations on any device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.attention import weights
from attnlab.attention.weights import running_sum
from tests.attention.layers import VARIANTS, C, layer_of, memo_of, x_of

# The name in the documentation, and the operators of the dispatcher behind it.
RAISING = {
    "AvgPool3d": "avg_pool3d_backward",
    "AdaptiveAvgPool2d": "_adaptive_avg_pool2d_backward",
    "AdaptiveAvgPool3d": "_adaptive_avg_pool3d_backward",
    "AdaptiveMaxPool2d": "adaptive_max_pool2d_backward",
    "FractionalMaxPool2d": "fractional_max_pool2d_backward",
    "FractionalMaxPool3d": "fractional_max_pool3d_backward",
    "MaxUnpool2d": "max_unpool2d",
    "MaxUnpool3d": "max_unpool3d",
    "interpolate": "upsample_linear1d_backward upsample_bilinear2d_backward "
    "upsample_bicubic2d_backward upsample_trilinear3d_backward",
    "ReflectionPad1d": "reflection_pad1d_backward",
    "ReflectionPad2d": "reflection_pad2d_backward",
    "ReflectionPad3d": "reflection_pad3d_backward",
    "NLLLoss": "nll_loss2d_forward",  # the loss of a sequence of logits (N, C) does not raise
    "CTCLoss": "_ctc_loss_backward",
    "EmbeddingBag": "_embedding_bag_dense_backward",
    "put_": "put_ put",
    "histc": "histc",
    "bincount": "bincount",
    "median": "median nanmedian",
    "grid_sample": "grid_sampler_2d_backward grid_sampler_3d_backward",
    "cumsum": "cumsum cumsum_ logcumsumexp cumprod",
    "scatter_reduce": "scatter_reduce scatter_reduce_",
}
REFUSED = {operator for names in RAISING.values() for operator in names.split()}


class AsOnCuda(TorchDispatchMode):
    """Raises RuntimeError for an operation that would raise on CUDA."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        whole = name.startswith("cumsum") and not args[0].is_floating_point()
        if name in REFUSED and not whole:
            raise RuntimeError(f"{name} has no deterministic implementation on CUDA")
        return func(*args, **(kwargs or {}))


def train(variant: str) -> Any:
    """A forward and a backward pass of a layer under the mode, in fp32."""
    layer = layer_of(variant).float().train()
    x = x_of(torch.float32).requires_grad_()
    with AsOnCuda():
        layer(x, *memo_of(layer, torch.float32)).square().sum().backward()
        layer.pattern(x)
    return layer


def test_the_list_is_that_of_the_installed_pytorch() -> None:
    page = str(torch.use_deterministic_algorithms.__doc__)
    raising = page[page.index("will throw a\n    :class:`RuntimeError` when ``mode=True``") :]
    raising = raising[: raising.index("In addition, several operations")]
    documented = {line.split("`")[1].split(".")[-1] for line in raising.split("* :")[1:]}
    # A quantized resize_ is of no use here, and MaxUnpool1d is MaxUnpool2d.
    assert documented == {*RAISING, "resize_", "MaxUnpool1d"}
    assert all(hasattr(torch.ops.aten, operator) for operator in REFUSED)


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
def test_a_float_cumsum_is_refused(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (weights, __import__("attnlab.attention.delta", fromlist=["delta"])):
        monkeypatch.setattr(module, "running_sum", by_cumsum)
    with pytest.raises(RuntimeError, match="cumsum has no deterministic"):
        train(variant)


# Uses that are refused in the forward pass or, like the last two, only in the backward pass.
PLANTED: dict[str, Callable[[Tensor], Tensor]] = {
    "median": lambda x: x.median(-1).values,
    "scatter_reduce": lambda x: x.scatter_reduce(-1, x.argsort(-1), x, "prod"),
    "put": lambda x: x.put(torch.arange(3), x.flatten()[:3]),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "upsample_linear1d_backward": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "reflection_pad1d_backward": lambda x: F.pad(x, (2, 2), mode="reflect"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_other_documented_operations_are_refused(name: str) -> None:
    x = x_of().requires_grad_()
    with AsOnCuda(), pytest.raises(RuntimeError, match=f"^{name} has no deterministic"):
        PLANTED[name](x).sum().backward()


def test_what_has_a_deterministic_kernel_is_allowed() -> None:
    x = x_of().requires_grad_()
    order = x.argsort(-1)
    with AsOnCuda():
        y = x.sort(-1).values + x.topk(4, -1).values.sum() + torch.arange(11).cumsum(0)[:, None]
        y = y + x.gather(-1, order) + x.scatter(-1, order, x) + x.scatter_add(-1, order, x)
        y.index_add(1, torch.tensor([0, 0]), x[:, :2]).sum().backward()


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
