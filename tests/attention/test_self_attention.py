"""What a layer of one's own may see: its input, the past of the text, and the first layer."""

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab import check_layer
from attnlab.attention import AttentionConfig, KVCache, Properties, SelfAttention, Variant, kernels
from attnlab.attention.cache import Memo
from attnlab.attention.properties import SOFTMAX, declare
from attnlab.init import init_weights, normal
from attnlab.model import GPT
from attnlab.probes.capture import views
from attnlab.rng import Rule, constant, zeros
from attnlab.sampling import CachedDecoder, supports_cache

C, H, T, V = 24, 3, 20, 11


class Forgetting(SelfAttention):
    """The change of the scores sees x, and its running sum is carried."""

    init_rules: ClassVar[dict[str, Rule]] = {"forget.weight": normal(0.5), "forget.bias": zeros}
    properties = SOFTMAX

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.forget = nn.Linear(config.n_embd, self.n_head)

    def mod(self, x: Tensor, cache: KVCache | None = None) -> kernels.Mod:
        passed = F.logsigmoid(self.forget(x)).mT.cumsum(-1)[..., None]  # (B, H, T, 1)
        sums = passed
        if cache is not None:
            if "forget" in cache.carried:
                passed = passed + cache.carried["forget"][:, :, -1:]
                sums = torch.cat([cache.carried["forget"], passed], dim=2)
            cache.carried["forget"] = sums
        return lambda scores: scores + passed - sums.mT


class FirstValues(SelfAttention):
    """Averages half of its values and half of those of the first layer."""

    properties = SOFTMAX

    def values(self, v: Tensor, memo: Memo | None) -> Tensor:
        assert memo is not None
        return (v + memo["values"]) / 2


class SymbolValues(SelfAttention):
    """Adds an embedding of the symbols to its values."""

    init_rules: ClassVar[dict[str, Rule]] = {"of_symbol.weight": normal(0.5)}
    properties = SOFTMAX

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.of_symbol = nn.Embedding(config.vocab_size or V, config.n_embd)

    def values(self, v: Tensor, memo: Memo | None) -> Tensor:
        assert memo is not None
        return v + self.of_symbol(memo["ids"]).unflatten(-1, (self.n_head, -1)).transpose(1, 2)


def sink_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor,
    scale: float,
    dropout: float,
    sink: Tensor | None = None,
) -> Tensor:
    scores = kernels.scores(q, k, scale=scale).masked_fill(~mask, float("-inf"))
    sink = torch.zeros(q.shape[1]) if sink is None else sink
    sinks = sink[:, None, None].expand(*scores.shape[:-1], 1)
    return kernels.mix(torch.cat([scores, sinks], -1).softmax(-1)[..., :-1], v, dropout=dropout)


declare(sink_softmax, Properties(nonnegative=True, cacheable=True))


class Sink(SelfAttention):
    """A learned number of each head goes to the kernel by name."""

    init_rules: ClassVar[dict[str, Rule]] = {"sink": constant(0.7)}
    properties = SOFTMAX

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.require_option("sink", "sink")
        self.sink = nn.Parameter(torch.zeros(self.n_head))

    def options(self, x: Tensor, cache: KVCache | None = None) -> dict[str, Any]:
        return super().options(x, cache) | {"sink": self.sink}


LAYERS = {
    "forgetting": Forgetting,
    "first values": FirstValues,
    "symbol values": SymbolValues,
    "sink": Variant(Sink, {"kernel": sink_softmax}),
    "window and shared heads": Variant(SelfAttention, {"window": 3, "n_kv_head": 1}),
}


def gpt(attn: Any) -> GPT:
    net = GPT(attn, V, block_size=T, n_layer=3, n_head=H, n_embd=C)
    init_weights(net, 0)
    stream = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=stream)
    return net.double().eval()


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_cached_text_has_the_same_logits(name: str) -> None:
    net, ids = gpt(LAYERS[name]), torch.arange(2 * T).view(2, T) * 7 % V
    assert supports_cache(net)
    decoder = CachedDecoder(net)
    pieces = [decoder.read(piece) for piece in ids.split([5, 1, 1, 9, 4], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), net(ids), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_pass_the_check_and_are_measured(name: str) -> None:
    layer = LAYERS[name](AttentionConfig(C, H, T))
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    check_layer(layer, n_embd=C, block_size=T)
    for view in views(gpt(LAYERS[name]), torch.arange(T)[None] % V):
        assert view.values is not None and view.pattern.triu(1).abs().max() == 0


@torch.no_grad()
def test_probes_see_the_values_that_are_averaged() -> None:
    net, ids = gpt(FirstValues), torch.arange(T)[None] % V
    first, second, _ = views(net, ids)
    x = net.blocks[0](net.embed(ids), {"ids": ids})
    plain = net.blocks[1].attn.split(net.blocks[1].ln_1(x))[2]
    assert first.values is not None and second.values is not None
    torch.testing.assert_close(second.values, ((plain + first.values) / 2).float())


def test_a_memo_belongs_to_one_forward_pass() -> None:
    net, kept = gpt(FirstValues), []
    net.blocks[1].attn.register_forward_pre_hook(
        lambda module, args, options: kept.append(options["memo"]), with_kwargs=True
    )
    net(torch.zeros(1, T, dtype=torch.long))
    net(torch.zeros(1, 4, dtype=torch.long))
    assert kept[0] is not kept[1]
    assert [memo["values"].shape[2] for memo in kept] == [T, 4]
    assert kept[0]["ids"].shape == (1, T)


def test_gradients_reach_the_first_layer_through_the_memo() -> None:
    net = gpt(FirstValues)
    for block in net.blocks:
        block.attn.proj.weight.requires_grad_(False)
    net.blocks[0].attn.proj.weight.zero_()  # nothing reaches the first layer in any other way
    net(torch.arange(T)[None] % V).square().sum().backward()
    assert net.blocks[0].attn.qkv.weight.grad[2 * C :].abs().max() > 0


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({}, 2 * C * T),
        ({"n_kv_head": 1}, 2 * C // H * T),
        ({"window": 5}, 2 * C * 4),
        ({"window": 5, "n_kv_head": 1}, 2 * C // H * 4),
    ],
)
@torch.no_grad()
def test_the_cache_keeps_no_more_than_is_needed(settings: dict[str, Any], numbers: int) -> None:
    layer = SelfAttention(AttentionConfig(C, H, T, **settings)).double().eval()
    x = torch.randn(1, T, C, dtype=torch.float64)
    cache = KVCache(T)
    parts = [layer.extend(part, cache) for part in x.split([6, 1, 1, 8, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x), rtol=0, atol=1e-12)
    assert len(cache) == T and cache.numbers() == numbers


def test_a_setting_whose_option_the_kernel_does_not_name_is_refused() -> None:
    with pytest.raises(ValueError, match="the kernel sdpa does not support sink; remove"):
        Sink(AttentionConfig(C, H, T))


def test_a_layer_for_causal_masks_refuses_others() -> None:
    class CausalOnly(SelfAttention):
        properties = Properties(causal_only=True)

    CausalOnly(AttentionConfig(C, H, T, window=4))
    with pytest.raises(ValueError, match="needs a mask without later keys; remove may_attend = n"):
        CausalOnly(AttentionConfig(C, H, T, window=4, may_attend=lambda q, k: k >= 0 * q))
