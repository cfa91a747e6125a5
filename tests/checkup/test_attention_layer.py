"""The checkup of single layers, ours and PyTorch's."""

import pytest
import torch
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention, TorchMHA, faulty_kernels, masks
from attnlab.checkup import checkup, checkup_attention
from attnlab.errors import BadInput

C, H, T = 24, 3, 17


def blocked(T: int) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).triu(1)


def masked_mha(layer: nn.Module, x: Tensor) -> object:
    return layer(x, x, x, attn_mask=blocked(x.shape[1]))


def masked_encoder(layer: nn.Module, x: Tensor) -> object:
    return layer(x, src_mask=blocked(x.shape[1]))


def test_our_layers() -> None:
    for layer in (SelfAttention, TorchMHA):
        report = checkup_attention(layer(AttentionConfig(C, H, T)), n_embd=C, block_size=T)
        assert report.diagnoses == ()


def test_pytorch_layers_with_a_causal_mask() -> None:
    mha = nn.MultiheadAttention(C, H, batch_first=True)
    assert checkup_attention(mha, block_size=T, call=masked_mha).diagnoses == ()
    encoder = nn.TransformerEncoderLayer(C, H, 32, batch_first=True, dropout=0.1)
    report = checkup_attention(encoder, n_embd=C, block_size=T, call=masked_encoder)
    assert report.diagnoses == ()


def test_pytorch_layers_without_a_mask_read_ahead() -> None:
    encoder = nn.TransformerEncoderLayer(C, H, 32, batch_first=True)
    assert checkup_attention(encoder, n_embd=C, block_size=T).causes == ("no_mask",)


@pytest.mark.parametrize(
    ("layer", "cause"),
    [
        (
            SelfAttention(AttentionConfig(C, H, block_size=T, may_attend=masks.flipped)),
            "flipped_mask",
        ),
        (
            SelfAttention(AttentionConfig(C, H, block_size=T, may_attend=masks.peek_one)),
            "off_by_one",
        ),
        (
            SelfAttention(AttentionConfig(C, H, block_size=T, kernel=faulty_kernels.zero_fill)),
            "zero_fill",
        ),
        (
            SelfAttention(
                AttentionConfig(C, H, block_size=T, kernel=faulty_kernels.unmerged_heads)
            ),
            "unmerged_heads",
        ),
    ],
)
def test_faults(layer: nn.Module, cause: str) -> None:
    assert checkup_attention(layer, n_embd=C, block_size=T).causes == (cause,)


def test_a_layer_without_n_embd_is_refused() -> None:
    with pytest.raises(BadInput, match="n_embd"):
        checkup_attention(nn.Identity())


def test_the_weights_that_a_layer_also_returns_are_not_its_output() -> None:
    """With T = 31 they are as wide as the embedding of a wider layer has rows."""
    mha = nn.MultiheadAttention(64, 4, batch_first=True)
    report = checkup_attention(mha, call=masked_mha)
    assert report.error == ""
    assert report.diagnoses == ()


class Averaging(nn.Module):
    """A layer of 12 channels that declares another width, or loses an axis."""

    def __init__(self, n_embd: int = 12) -> None:
        super().__init__()
        self.n_embd, self.values = n_embd, nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        return self.values(x).view(B, T, 12).mean(1)


def test_a_layer_of_another_shape_is_told_what_it_got_and_gave() -> None:
    gave = r"for \(B, T\) = \(2, 32\) the layer returned \(2, 12\); it must give outputs of shape"
    with pytest.raises(BadInput, match=gave):
        checkup_attention(Averaging())
    got = r"the layer fails on \(B, T, C\) = \(2, 32, 16\): .*12x12.*; if C is not 16, give n_embd"
    with pytest.raises(BadInput, match=got):
        checkup_attention(Averaging(16))


@pytest.mark.parametrize("layer", [Averaging(), nn.Linear(12, 12)])
def test_a_layer_that_is_given_as_a_model_is_recognized(layer: nn.Module) -> None:
    with pytest.raises(BadInput, match=r"use checkup_attention \(--layer\)"):
        checkup(layer, vocab_size=9)
