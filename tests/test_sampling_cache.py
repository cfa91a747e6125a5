"""The KV cache gives the same logits and the same text for every variant."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from attnlab.attention import SelfAttention, Variant
from attnlab.attention.cache import KVCache
from attnlab.attention.masks import build_mask, looks_back
from attnlab.model import GPT, rms_norm
from attnlab.sampling import CachedDecoder, sample, supports_cache
from attnlab.training.instantiate import build
from tests.conftest import VARIANTS, of_variant

V, T = 13, 16
# Their outputs can change when the text grows, or they do not declare that they cannot.
READ_WHOLE = {
    "additive",
    "bidirectional",
    "finite_fill",
    "flipped",
    "general",
    "peek_one",
    "post_softmax_mask",
    "softmax_over_queries",
    "strict_flip",
    "torch_mha",
    "unmerged_heads",
    "zero_fill",
}
FINITE = [variant for variant in VARIANTS if variant != "strict_flip"]


def loud(net: GPT) -> GPT:
    """Large weights, so that each character depends on those before it."""
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=stream))
    return net.eval()


@cache
def gpt_of(variant: str) -> GPT:
    return own(build(of_variant(variant), "attn"), bias=True).double()


def own(attn: Any = SelfAttention, block_size: int = T, **given: Any) -> GPT:
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16} | given
    torch.manual_seed(0)
    return loud(GPT(attn, V, block_size=block_size, **sizes))


def window(q: Tensor, k: Tensor) -> Tensor:
    return (k <= q) & (k > q - 5)


def last_half(q: Tensor, k: Tensor) -> Tensor:
    """A predicate that depends on the length of the text, as it should not."""
    return (k <= q) & ((k == q) | (k >= len(q) // 2))


MODELS: dict[str, Callable[[], GPT]] = {
    "learned": own,
    "biased": lambda: own(bias=True),
    "rotary": lambda: own(Variant(SelfAttention, {"rotary": 100.0})),
    "rotary alone": lambda: own(
        Variant(SelfAttention, {"rotary": 100.0}), learned_positions=False
    ),
    "no positions": lambda: own(learned_positions=False),
    "cosine": lambda: own(Variant(SelfAttention, {"qk_norm": True}), norm=rms_norm),
    "window": lambda: own(Variant(SelfAttention, {"may_attend": window})),
    "window with forget gates": lambda: own(Variant(SelfAttention, {"window": 3, "forget": 0.0})),
    "window of one with forget gates": lambda: own(
        Variant(SelfAttention, {"window": 1, "forget": 0.0})
    ),
    "shared heads": lambda: own(Variant(SelfAttention, {"n_kv_head": 1})),
    "shared heads with values of symbols": lambda: own(
        Variant(SelfAttention, {"n_kv_head": 1, "value_embeddings": True})
    ),
    "smeared": lambda: own(smear=3),
    "smeared alone": lambda: own(smear=1, learned_positions=False),
    "one layer": lambda: own(n_layer=1, n_head=1),
}


@cache
def model(name: str) -> GPT:
    return MODELS[name]()


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_declare_whether_they_support_the_cache(variant: str) -> None:
    assert supports_cache(gpt_of(variant)) == (variant not in READ_WHOLE)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in READ_WHOLE])
@torch.no_grad()
def test_logits_of_variants(variant: str) -> None:
    net = gpt_of(variant)
    ids = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(1))
    reader = CachedDecoder(net)
    pieces = [reader.read(piece) for piece in ids.split([5, 1, 1, 9], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), net(ids), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", MODELS)
@examples(max_examples=10)
@given(pieces=st.lists(st.integers(1, 9), min_size=1, max_size=12), seed=st.integers(0, 99))
@torch.no_grad()
def test_logits_in_any_pieces(name: str, pieces: list[int], seed: int) -> None:
    net = model(name)
    assert supports_cache(net)
    ids = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(seed))
    reader, begin = CachedDecoder(net), 0
    for length in pieces:
        if begin + length > T:
            with pytest.raises(ValueError, match="do not fit into block_size = 16"):
                reader.read(ids[:, :1].expand(2, length))
            continue  # a text that was refused leaves no trace
        logits = reader.read(ids[:, begin : begin + length])
        begin += length
        whole = net(ids[:, :begin])[:, -length:]
        torch.testing.assert_close(logits, whole, atol=1e-5, rtol=0)
        assert len(reader) == begin


@pytest.mark.parametrize("variant", FINITE)
def test_every_variant_writes_the_same_text(variant: str) -> None:
    """From an empty cache to a full block, and beyond."""
    net, prompt = gpt_of(variant), torch.arange(5)
    texts = [list(sample(net, prompt, T, seed=1, cache=cache)) for cache in (True, False)]
    assert texts[0] == texts[1]


@examples(max_examples=30)
@given(
    name=st.sampled_from(sorted(MODELS)),
    length=st.integers(1, 2 * T),
    chars=st.integers(0, 2 * T),
    seed=st.integers(0, 99),
)
def test_the_text_is_the_same_for_any_prompt(
    name: str, length: int, chars: int, seed: int
) -> None:
    net, prompt = model(name), torch.arange(length) % V
    texts = [list(sample(net, prompt, chars, seed=seed, cache=cache)) for cache in (True, False)]
    assert texts[0] == texts[1] and len(texts[0]) == chars


@pytest.mark.parametrize("rotary", [None, 1e4])
def test_300_characters_are_the_same(rotary: float | None) -> None:
    compare_texts(64, rotary, 300)


@pytest.mark.long
@pytest.mark.parametrize("block_size", [64, 300])
@pytest.mark.parametrize("rotary", [None, 1e4])
def test_2000_characters_are_the_same(block_size: int, rotary: float | None) -> None:
    compare_texts(block_size, rotary, 2000)


def compare_texts(block_size: int, rotary: float | None, chars: int) -> None:
    torch.manual_seed(0)
    net = own(Variant(SelfAttention, {"rotary": rotary}), block_size)
    prompt = torch.arange(5)
    texts = [list(sample(net, prompt, chars, seed=3, cache=cache)) for cache in (True, False)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 5


def test_the_cache_is_used_until_the_block_is_full() -> None:
    net, lengths = own(), []
    net.register_forward_pre_hook(lambda module, args: lengths.append(args[0].shape[1]))
    list(sample(net, torch.arange(4), T + 5))
    assert lengths == [T] * 8  # characters T - 4 + 2 and later: their windows have moved
    lengths.clear()
    list(sample(net, torch.arange(4), 10, cache=False))
    assert lengths == list(range(4, 14))


class Derived(SelfAttention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(1, keepdim=True)


class DerivedGPT(GPT):
    def forward(self, ids: Tensor) -> Tensor:
        return -super().forward(ids)


def test_subclasses_of_users_are_sampled_without_a_cache() -> None:
    derived = DerivedGPT(SelfAttention, V, block_size=T, n_layer=1, n_head=1, n_embd=4)
    for net in (own(Derived), derived, own(Variant(SelfAttention, {"may_attend": last_half}))):
        assert not supports_cache(net)
        prompt = torch.arange(3)
        assert list(sample(net, prompt, 9)) == list(sample(net, prompt, 9, cache=False))


def test_masks_that_look_back() -> None:
    assert looks_back(window, T) and looks_back(window, 1)
    assert not looks_back(last_half, T)
    assert build_mask(last_half, T).triu(1).sum() == 0


def test_a_cache_returns_appended_keys_and_refuses_overflow() -> None:
    cache = KVCache(5)
    k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    for begin, end in ((0, 2), (2, 3), (3, 5)):
        keys, values = cache.append(k[:, :, begin:end], v[:, :, begin:end])
        assert len(cache) == begin
        cache.advance(end - begin)
        assert torch.equal(keys, k[:, :, :end]) and torch.equal(values, v[:, :, :end])
    assert len(cache) == 5 and cache.numbers() == k.numel() + v.numel()
    with pytest.raises(ValueError, match="6 positions do not fit into a cache of 5"):
        cache.append(k[:, :, :1], v[:, :, :1])
