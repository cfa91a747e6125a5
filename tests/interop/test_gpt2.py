"""Import from and export to GPT-2: equal numbers in both directions, and unsupported models."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from attnlab.attention import SelfAttention, Variant
from attnlab.attention.kernels import manual
from attnlab.errors import BadInput
from attnlab.interop import attention_from_gpt2, block_from_gpt2, from_gpt2, to_gpt2
from attnlab.sampling import sample

V, T = 61, 24


def gpt2(seed: int = 0, **settings: Any) -> GPT2LMHeadModel:
    """A small random GPT-2 whose biases and LayerNorms are random too."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": V, "n_positions": T, "n_embd": 32, "n_layer": 2, "n_head": 4}
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(**(sizes | settings))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(rows: int = 3, length: int = T, vocab_size: int = V) -> Tensor:
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(1))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@settings(max_examples=25)
@given(
    heads=st.integers(1, 4),
    width=st.sampled_from([1, 2, 7, 16]),
    layers=st.integers(1, 3),
    vocab=st.integers(2, 90),
    length=st.integers(1, 40),
    activation=st.sampled_from(["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "relu2", "silu"]),
    scaled=st.booleans(),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_logits_are_equal_into_ours_and_back(
    heads: int,
    width: int,
    layers: int,
    vocab: int,
    length: int,
    activation: str,
    scaled: bool,
    seed: int,
) -> None:
    model = gpt2(
        seed,
        vocab_size=vocab,
        n_positions=length,
        n_embd=heads * width,
        n_head=heads,
        n_layer=layers,
        activation_function=activation,
        scale_attn_weights=scaled,
    )
    ids = tokens(2, length, vocab)
    theirs = model(ids).logits
    net = from_gpt2(model)
    close(net(ids), theirs)
    back = to_gpt2(net)
    close(back(ids).logits, theirs)
    for name, weight in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name


@pytest.mark.parametrize("size", [{}, {"n_embd": 48, "n_layer": 3, "n_head": 2}, {"n_head": 1}])
def test_greedy_text_is_identical(size: dict[str, int]) -> None:
    model = gpt2(4, **size)
    prompt = tokens(1, 3)
    theirs = model.generate(prompt, max_new_tokens=T - 3, do_sample=False)[0, 3:].tolist()
    net = from_gpt2(model)
    assert list(sample(net, prompt[0], T - 3, temperature=0)) == theirs
    again = to_gpt2(net).generate(prompt, max_new_tokens=T - 3, do_sample=False)[0, 3:].tolist()
    assert again == theirs
    assert len(set(theirs)) > 1


@pytest.mark.parametrize("scaled", [True, False])
@torch.no_grad()
def test_a_single_block_and_a_single_layer(scaled: bool) -> None:
    settings = {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": scaled}
    model = gpt2(attn_implementation="eager", **settings)
    x = torch.randn(2, T, 32)
    mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
    for block in model.transformer.h:
        output = block(x, attention_mask=mask)
        output = output[0] if isinstance(output, tuple) else output
        close(block_from_gpt2(block)(x), output)
        attn = attention_from_gpt2(block.attn)
        y, pattern = block.attn(x, attention_mask=mask)[:2]
        close(attn(x), y)
        close(attn.pattern(x), pattern)
        theirs = block.attn.c_attn(x).split(32, dim=-1)
        for ours, projected in zip(attn.split(x), theirs, strict=True):
            close(ours, projected.unflatten(-1, (4, 8)).transpose(1, 2))


@torch.no_grad()
def test_pretrained_weights_work_with_a_changed_attention() -> None:
    model, ids = gpt2(), tokens()
    close(from_gpt2(model, Variant(SelfAttention, {"kernel": manual}))(ids), model(ids).logits)
    changed = from_gpt2(model, Variant(SelfAttention, {"scale": 2.0}))
    assert (changed(ids) - model(ids).logits).abs().max() > 1e-3


def test_mode_dtype_and_dropout_are_copied_from_the_model() -> None:
    model = gpt2(resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2).to(torch.bfloat16).train()
    net = from_gpt2(model)
    assert net.training and net.wte.weight.dtype == torch.bfloat16
    assert net.dropout.p == net.blocks[1].dropout.p == net.blocks[1].attn.dropout == 0.2
    assert to_gpt2(net).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
        ({"add_cross_attention": True}, "add_cross_attention = true"),
        ({"n_inner": 77}, "n_inner = 77 must be 4 \\* n_embd = 128"),
        ({"activation_function": "tanh"}, "activation_function = tanh must be one of gelu_new"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon = 1e-06 must be 1e-05"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = false"),
        ({"attn_pdrop": 0.3}, "attn_pdrop = 0.3 must be equal"),
    ],
)
def test_models_that_our_classes_cannot_express_are_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        from_gpt2(gpt2(**settings))


def test_a_cross_attention_is_refused() -> None:
    block = gpt2(add_cross_attention=True).transformer.h[0]
    with pytest.raises(BadInput, match="reads two sequences"):
        attention_from_gpt2(block.crossattention)
    with pytest.raises(BadInput, match="add_cross_attention = true"):
        block_from_gpt2(block)
