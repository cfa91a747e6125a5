"""torch.compile: a model of SelfAttention is one graph, with the outputs and gradients that it has
without."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.attention import SelfAttention, causal, flipped
from attnlab.attention.core import build_mask
from attnlab.init import init_weights
from attnlab.model import GPT

T = 16


class Near:
    """A mask that is an object."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q - k < 4)


def within(reach: int) -> Callable[[Tensor, Tensor], Tensor]:
    def mask(q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q - k < reach)

    return mask


# Settings, and whether PyTorch's kernel gets a mask; without one, it skips what is blocked.
SETTINGS: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"window": T}, False),  # hides nothing
    ({"window": 3}, True),
    ({"may_attend": flipped}, True),
    ({"may_attend": Near()}, True),
    ({"may_attend": within(3)}, True),
    ({"rotary": 1e4, "qk_norm": True, "n_kv_head": 2}, False),
]
IDS = ["causal", "wide", "window", "flipped", "object", "closure", "rotary"]


@pytest.mark.parametrize(("settings", "masked"), SETTINGS, ids=IDS)
def test_a_model_is_one_graph_for_each_length(settings: dict[str, Any], masked: bool) -> None:
    net = GPT(partial(SelfAttention, **settings), 7, block_size=T, n_layer=2, n_embd=32)
    init_weights(net, 0)
    kernels: list[list[Any]] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls = [n for n in graph.graph.nodes if "scaled_dot_product" in str(n.target)]
        kernels.append([call.args[3] for call in calls])
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    lengths = [T, 9, 5, 9]
    for length in lengths:
        ids = torch.randint(7, (2, length), generator=torch.Generator().manual_seed(length))
        gradients = []
        for model in (compiled, net):
            net.zero_grad()
            logits = model(ids)
            logits.square().sum().backward()
            gradients.append([logits, *(p.grad for p in net.parameters())])
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
    assert len(kernels) == len({*lengths})
    assert all(len(graph) == 2 for graph in kernels)
    assert {mask is not None for graph in kernels for mask in graph} == {masked}


def test_a_mask_is_checked_before_a_graph_has_it() -> None:
    class Blind(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.masked_fill(build_mask(lambda q, k: k < q, len(x)), 0.0)

    torch._dynamo.reset()
    with pytest.raises(Exception, match="leaves a query without keys"):
        torch.compile(Blind(), fullgraph=True, backend="eager")(torch.ones(3, 3))


def test_a_mask_is_the_same_tensor_where_it_is_causal() -> None:
    assert build_mask(within(T), T) is build_mask(causal, T)
    assert build_mask(within(3), T) is not build_mask(causal, T)
