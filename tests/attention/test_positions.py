"""Rotary positions and QK-norm, compared with their papers."""

import math

import pytest
import torch

from attnlab.attention import AttentionConfig, SelfAttention, kernels
from attnlab.attention.positions import rotate
from tests.contracts.test_variants import x_of


def test_the_first_channel_pair_by_hand() -> None:
    """At position t, the pair (1, 0) with angle 1 becomes (cos t, sin t)."""
    x = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(4, 2)
    t = torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(rotate(x), torch.stack([t.cos(), t.sin()], dim=-1))


def test_against_complex_numbers() -> None:
    """The pairs as complex numbers, multiplied by e^(i t theta) (Su et al. 2021, equation 12)."""
    T, D = 7, 6
    x = torch.randn(2, 3, T, D, dtype=torch.float64)
    z = torch.complex(x[..., ::2], x[..., 1::2])
    theta = 10_000.0 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)
    turned = z * torch.polar(torch.ones(T, D // 2).double(), torch.arange(T)[:, None] * theta)
    expected = torch.stack([turned.real, turned.imag], dim=-1).flatten(-2)
    torch.testing.assert_close(rotate(x), expected)


def test_scores_depend_only_on_the_distance() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64)
    T = 20
    scores = rotate(q.expand(T, 8)) @ rotate(k.expand(T, 8)).mT
    for distance in range(-T + 1, T):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert scores.std() > 0.1


def test_a_later_start_is_a_slice() -> None:
    x = torch.randn(9, 8)
    assert torch.equal(rotate(x)[4:], rotate(x[4:], start=4))


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(ValueError, match="24 / 8 = 3 must be even"):
        SelfAttention(AttentionConfig(24, 8, block_size=4, rotary=100.0))


def test_rotary_positions_distinguish_equal_tokens() -> None:
    """Rows of scores of equal tokens are equal without rotary positions, and differ with them."""
    x = x_of()[:, :1, :24].expand(2, 5, 24)
    plain = SelfAttention(AttentionConfig(24, 3, block_size=5)).scores(x)
    turned = SelfAttention(AttentionConfig(24, 3, block_size=5, rotary=100.0)).scores(x)
    torch.testing.assert_close(plain, plain[..., :1, :1].expand_as(plain))
    assert turned.std() > 1e-3


@pytest.mark.parametrize("kernel", [kernels.sdpa, kernels.manual])
def test_cosine_scores(kernel: kernels.Kernel) -> None:
    """Scores are gain * D * scale * cos(query, key), for queries and keys of any size."""
    torch.manual_seed(0)
    layer = SelfAttention(
        AttentionConfig(24, 3, block_size=11, kernel=kernel, qk_norm=True)
    ).double()
    plain = SelfAttention(AttentionConfig(24, 3, block_size=11)).double()
    plain.load_state_dict(layer.state_dict(), strict=False)
    assert layer.gain is not None
    torch.nn.init.uniform_(layer.gain, 0.5, 2)
    x = 10 * x_of(torch.float64)[..., :24]
    q, k, _ = plain.split(x)
    cosine = torch.nn.functional.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
    expected = layer.gain[:, None, None] * math.sqrt(8) * cosine
    torch.testing.assert_close(layer.scores(x), expected, rtol=1e-4, atol=1e-5)
    blocked = ~torch.ones(11, 11, dtype=torch.bool).tril()
    pattern = expected.masked_fill(blocked, -math.inf).softmax(-1)
    torch.testing.assert_close(layer.pattern(x), pattern, rtol=1e-4, atol=1e-5)
