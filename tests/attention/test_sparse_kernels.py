"""Kernels with sparse weights compared with loops over single rows."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention import masks, sparse_kernels
from attnlab.attention.kernels import Kernel

B, H, T, D = 2, 3, 9, 4
Row = Callable[[np.ndarray], list[float]]


def simplex_row(power: int) -> Row:
    """max(s / power - tau, 0)^power with tau found by bisection."""

    def row(scores: np.ndarray) -> list[float]:
        z = scores / power
        low, high = z.max() - 1, z.max()
        for _ in range(100):
            tau = (low + high) / 2
            total = sum(max(x - tau, 0) ** power for x in z)
            low, high = (tau, high) if total > 1 else (low, tau)
        return [max(x - low, 0) ** power for x in z]

    return row


def top_3_row(scores: np.ndarray) -> list[float]:
    kept = sorted(range(len(scores)), key=lambda j: -scores[j])[:3]
    total = sum(math.exp(scores[j]) for j in kept)
    return [math.exp(scores[j]) / total if j in kept else 0.0 for j in range(len(scores))]


def softpick_row(scores: np.ndarray) -> list[float]:
    total = sum(abs(math.exp(s) - 1) for s in scores)
    return [max(math.exp(s) - 1, 0) / total for s in scores]


def stick_row(scores: np.ndarray) -> list[float]:
    weights, rest = [0.0] * len(scores), 1.0
    for j in reversed(range(len(scores) - 1)):  # back from the key before the query
        share = 1 / (1 + math.exp(-scores[j]))
        weights[j] = share * rest
        rest *= 1 - share
    weights[-1] = rest
    return weights


def top_3(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    return sparse_kernels.top_k(q, k, v, mask=mask, scale=scale, dropout=dropout, top_k=3)


CASES: dict[str, tuple[Kernel, Row, float]] = {
    "sparsemax": (sparse_kernels.sparsemax, simplex_row(1), 1e-12),
    "entmax15": (sparse_kernels.entmax15, simplex_row(2), 1e-12),
    "top_k": (top_3, top_3_row, 1e-12),
    "softpick": (sparse_kernels.softpick, softpick_row, 1e-7),  # its 1e-8
    "stick_breaking": (sparse_kernels.stick_breaking, stick_row, 1e-12),
}


def queries_and_keys() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, B, H, T, D, generator=g, dtype=torch.float64) * 1.5
    return q, k


def pattern(kernel: Kernel, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    one_hot = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:3], k.shape[2])
    return kernel(q, k, one_hot, mask=mask, scale=0.5, dropout=0.0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("predicate", [masks.causal, masks.window(masks.causal, 4)])
def test_the_pattern_equals_the_loop(name: str, predicate: masks.Predicate) -> None:
    kernel, row, tolerance = CASES[name]
    q, k = queries_and_keys()
    mask = masks.build_mask(predicate, T)
    expected = torch.zeros(B, H, T, T, dtype=torch.float64)
    for b, h, i in np.ndindex(B, H, T):
        visible = mask[i].nonzero()[:, 0]
        scores = 0.5 * (q[b, h, i] @ k[b, h, visible].T)
        expected[b, h, i, visible] = torch.tensor(row(scores.numpy()), dtype=torch.float64)
    torch.testing.assert_close(pattern(kernel, q, k, mask), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_finite_differences(name: str) -> None:
    kernel, _, _ = CASES[name]
    q, k = (x[:1, :1].requires_grad_() for x in queries_and_keys())
    v = torch.randn(1, 1, T, D, dtype=torch.float64)
    mask = masks.build_mask(masks.causal, T)
    assert torch.autograd.gradcheck(
        lambda q, k: kernel(q, k, v, mask=mask, scale=0.5, dropout=0.0), (q, k)
    )


@pytest.mark.parametrize("name", CASES)
def test_the_last_rows_of_a_longer_text_equal_those_of_the_whole(name: str) -> None:
    kernel, _, _ = CASES[name]
    q, k = queries_and_keys()
    mask = masks.build_mask(masks.causal, T)
    whole = pattern(kernel, q, k, mask)
    assert torch.equal(pattern(kernel, q[:, :, 5:], k, mask[5:]), whole[:, :, 5:])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_small_and_large_scores_give_finite_rows_and_gradients_in_fp32(
    name: str, size: float
) -> None:
    kernel, _, _ = CASES[name]
    q, k = (x.float().mul(size).requires_grad_() for x in queries_and_keys())
    rows = pattern(kernel, q, k, masks.build_mask(masks.causal, T))
    rows.square().sum().backward()
    assert all(x.isfinite().all() for x in (rows, q.grad, k.grad))
    sums = rows.sum(-1)
    if name == "softpick":
        assert (sums >= 0).all() and (sums <= 1 + 1e-5).all()
    else:
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


def test_softpick_attends_to_nothing_if_no_score_is_positive() -> None:
    q = torch.ones(1, 1, 3, 2)
    rows = pattern(sparse_kernels.softpick, q, -q, masks.build_mask(masks.causal, 3))
    assert (rows == 0).all()


def test_top_k_keeps_equal_scores_and_short_rows() -> None:
    q = torch.ones(1, 1, 4, 2)
    rows = pattern(top_3, q, q, masks.build_mask(masks.causal, 4))
    expected = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    torch.testing.assert_close(rows[0, 0], expected)
