"""`attention()` against PyTorch's function and a loop over single queries in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnlab.attention import attention

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """q, k, v of any rank, S other than T, E other than D, a mask, and a bias that blocks, too."""
    leading = draw(st.sampled_from([(), (1,), (3,), (1, 2), (2, 3)]))
    T, S, D, E = (draw(st.integers(1, 6)) for _ in range(4))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    q, k, v, bias = (
        torch.randn(*leading, *shape, generator=g, dtype=torch.float64)
        for shape in ((T, D), (S, D), (S, E), (T, S))
    )
    shape = draw(st.sampled_from([(*leading, T, S), (*leading, 1, S), (S,)]))
    may = torch.rand(shape, generator=g) < 0.5
    may[..., 0] |= draw(st.booleans())
    bias.masked_fill_(torch.rand(bias.shape, generator=g) < 0.1, -torch.inf)
    parts = {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype), "may": may, "bias": bias}
    return parts | {"scale": draw(st.none() | st.floats(-2, 2))}


@given(case=cases())
def test_equals_pytorch_and_a_loop(case: dict[str, Any]) -> None:
    q, k, v, may, bias = (case[key] for key in ("q", "k", "v", "may", "bias"))
    given = {"bias": bias, "scale": case["scale"], "empty": "zeros"}
    output, pattern = attention(q, k, v, may_attend=may, **given)
    for same in ({"blocked": ~may}, {"blocked": 1 - may.int()}, {"may_attend": may.float()}):
        assert torch.equal(output, attention(q, k, v, **same, **given)[0])
    tolerance = TOLERANCE[q.dtype]
    scale = q.shape[-1] ** -0.5 if case["scale"] is None else case["scale"]
    may = may.expand(bias.shape)
    seen = may & (bias > -torch.inf)
    for place in np.ndindex(q.shape[:-1]):
        keys, values = k[place[:-1]].double(), v[place[:-1]].double()
        row = np.where(seen[place], scale * (keys @ q[place].double()) + bias[place], -np.inf)
        weights = np.exp(row - row.max()) if seen[place].any() else np.zeros(len(row))
        weights = weights / max(weights.sum(), 1e-300)
        np.testing.assert_allclose(pattern[place], weights, rtol=0, atol=tolerance)
        np.testing.assert_allclose(output[place], weights @ values.numpy(), rtol=0, atol=tolerance)
    seen = seen.any(-1)
    number = bias.masked_fill(~may, -torch.inf).to(q.dtype)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=number, scale=case["scale"])
    torch.testing.assert_close(output[seen], theirs[seen], rtol=0, atol=tolerance)


def test_a_query_without_keys_is_an_error_or_zeros_with_zero_gradients() -> None:
    q, k, v = (
        x.requires_grad_() for x in (torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 2))
    )
    may = torch.ones(3, 5, dtype=torch.bool)
    may[1] = False
    with pytest.raises(ValueError, match=r"query 1.*sees no key"):
        attention(q, k, v, may_attend=may)
    output, pattern = attention(q, k, v, may_attend=may, empty="zeros")
    assert (output[1] == 0).all() and (pattern[1] == 0).all()
    (output.sum() + pattern.square().sum()).backward()
    assert q.grad is not None and (q.grad[1] == 0).all() and (q.grad[[0, 2]] != 0).any()
    assert k.grad is not None and k.grad.isfinite().all()


def test_scores_and_softmax_are_in_fp32() -> None:
    q, k, v = (
        x.bfloat16() for x in (torch.randn(6, 8) * 8, torch.randn(7, 8) * 8, torch.randn(7, 3))
    )
    output, pattern = attention(q, k, v)
    assert (output.dtype, pattern.dtype) == (torch.bfloat16, torch.float32)
    exact = attention(q.double(), k.double(), v.double())[1]
    torch.testing.assert_close(pattern.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"may_attend": torch.ones(3, 4)}, r"may_attend of shape \(3, 4\) does not broadcast"),
        ({"blocked": torch.zeros(2, 5)}, r"a mask of padded keys is \(2, 1, 5\)"),
        ({"may_attend": torch.tensor([0, -torch.inf, 0, 0, 0])}, "may_attend holds -inf"),
        ({"bias": torch.ones(3, 5, dtype=torch.bool)}, "bias is bool"),
    ],
)
def test_wrong_masks_are_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        attention(torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6), **changed)
