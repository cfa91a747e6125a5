"""Kernels compared with the reference; mistakes are named."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention import kernels
from attnlab.checkup import Status, checkup_kernel
from attnlab.checkup.kernel_adapter import Inputs, departures, mistakes
from attnlab.errors import BadInput
from tests.faults import in_gpt

EXPECTED = {
    "zero_fill": "zero_fill",
    "finite_fill": "finite_fill",
    "post_softmax_mask": "post_softmax_mask",
    "softmax_over_queries": "softmax_queries",
    "softmax_over_heads": "softmax_heads",
    "unmerged_heads": "unmerged_heads",
    "unsplit_heads": "unsplit_heads",
    "untransposed": "untransposed",
    "double_scale": "double_scale",
    "added_bool": "added_bool",
    "no_softmax": "no_softmax",
    "row_gain": "row_sums",
    "dropout_on": "dropout_on",
    "naive_softmax": "overflow",
    "self_blocked": "self_blocked",
    "peek_in_one_head": "off_by_one",
}


@pytest.mark.parametrize("fault", EXPECTED)
def test_mistakes_in_kernels_are_named(fault: str) -> None:
    report = checkup_kernel(in_gpt.KERNELS[fault], mask_style="attend")
    assert not report.healthy
    assert report.causes[0] == EXPECTED[fault]


@pytest.mark.parametrize("kernel", [kernels.sdpa, kernels.manual, F.scaled_dot_product_attention])
def test_correct_kernels_pass(kernel: object) -> None:
    report = checkup_kernel(kernel)  # type: ignore[arg-type]
    assert report.diagnoses == ()


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, factor: float) -> Tensor:
    return (q @ k.mT * factor).masked_fill(~mask, -math.inf).softmax(-1) @ v


def lower(x: Tensor, diagonal: int = 0) -> Tensor:
    return torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril(diagonal)


def test_unusual_scale_factors_are_named() -> None:
    def none(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, lower(q), 1.0)

    def width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, lower(q), (q.shape[1] * q.shape[-1]) ** -0.5)

    def inverse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, lower(q), 1 / q.shape[-1])

    assert checkup_kernel(none).causes == ("no_scale",)
    assert checkup_kernel(width).causes == ("width_scale",)
    assert checkup_kernel(inverse).causes == ("inverse_scale",)


def test_two_mistakes_are_both_reported() -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, lower(q, 1), 1.0)

    report = checkup_kernel(wrong)
    assert set(report.causes) == {"no_scale", "off_by_one"}


def test_mask_styles() -> None:
    def block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attention(q, k, v, ~mask, q.shape[-1] ** -0.5)

    def add(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5 + attn_mask).softmax(-1) @ v

    assert checkup_kernel(block, mask_style="block").healthy
    assert checkup_kernel(add, mask_style="add").healthy
    assert checkup_kernel(block, mask_style="attend").causes == ("inverted_mask",)
    assert checkup_kernel(add, mask_style="attend").causes == ("added_bool",)
    for kernel, style in ((block, "True = blocked"), (add, "0 and -inf")):
        report = checkup_kernel(kernel)
        assert report.healthy
        assert report.settings["mask"].startswith(style)
    with pytest.raises(BadInput, match="mask_style = both"):
        checkup_kernel(block, mask_style="both")


def four(q: Tensor, k: Tensor, v: Tensor, dims: int, factor: float) -> Tensor:
    assert q.ndim == dims
    return attention(q, k, v, lower(q), factor)


@pytest.mark.parametrize("layout", ["(B, H, T, D)", "(B, T, H, D)", "(B H, T, D)", "(T, D)"])
@pytest.mark.parametrize(("factor", "cause"), [(5**-0.5, ()), (1.0, ("no_scale",))])
def test_layouts_are_found_by_trying(layout: str, factor: float, cause: tuple[str, ...]) -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layout == "(B, T, H, D)":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return four(q, k, v, 4, factor).transpose(1, 2)
        return four(q, k, v, layout.count(",") + 1, factor)

    report = checkup_kernel(kernel, layout=layout if factor == 1 else None)
    assert report.causes == cause
    assert report.settings["layout"] == layout


def test_dropout_that_changes_the_mean_is_reported() -> None:
    def dropped(scale: float) -> object:
        def kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float = 0.0) -> Tensor:
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -math.inf)
            keep = torch.rand(scores.shape) >= dropout
            return (scores.softmax(-1) * keep / (1 - dropout) ** scale) @ v

        return kernel

    right, unscaled = checkup_kernel(dropped(1)), checkup_kernel(dropped(0))  # type: ignore[arg-type]
    assert right.healthy
    assert right.finding("dropout").status is Status.OK
    assert unscaled.causes == ("dropout_scale",)
    ignored = checkup_kernel(lambda q, k, v, mask, dropout: kernels.sdpa(
        q, k, v, mask=mask, scale=q.shape[-1] ** -0.5, dropout=0.0
    ))  # fmt: skip
    assert ignored.causes == ("dropout_ignored",)


def test_a_query_without_keys_must_not_affect_the_others() -> None:
    def spoils(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        y = attention(q, k, v, mask, q.shape[-1] ** -0.5)
        return y if bool(y.isfinite().all()) else y * math.nan

    assert checkup_kernel(spoils).causes == ("empty_row",)
    finding = checkup_kernel(F.scaled_dot_product_attention).finding("empty row")
    assert finding.headline == "a query without keys gets zeros"


def test_grouped_heads() -> None:
    def tiled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        return attention(q, k, v, mask, q.shape[-1] ** -0.5)

    def repeated(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        return attention(q, k, v, mask, q.shape[-1] ** -0.5)

    assert checkup_kernel(tiled).causes == ("head_order",)
    assert checkup_kernel(repeated).healthy


def test_a_kernel_without_a_mask_may_be_meant_for_an_encoder() -> None:
    def everything(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, torch.ones_like(lower(q)), q.shape[-1] ** -0.5)

    assert checkup_kernel(everything).causes == ("no_mask",)
    assert checkup_kernel(everything, causal=False).healthy


def test_wrong_gradients_are_found() -> None:
    def detached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k.detach() + 0 * k, v, lower(q), q.shape[-1] ** -0.5)

    report = checkup_kernel(detached)
    assert report.finding("backward").cause == "wrong"


def test_an_input_without_a_gradient_is_a_wrong_gradient() -> None:
    def detached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k.detach(), v, lower(q), q.shape[-1] ** -0.5)

    finding = checkup_kernel(detached).finding("backward")
    assert finding.cause == "wrong"
    assert "gradient of k" in finding.headline


def test_a_kernel_that_fails_on_the_way_leaves_the_findings_so_far() -> None:
    def causal_only(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        if not torch.equal(mask, lower(q)):
            raise RuntimeError("causal masks only")
        return attention(q, k, v, mask, q.shape[-1] ** -0.5)

    report = checkup_kernel(causal_only, mask_style="attend")
    assert report.exit_code == 3
    assert report.error.endswith("RuntimeError: causal masks only")
    assert report.finding("reference").status is Status.OK


def test_kernels_that_cannot_be_called() -> None:
    def flat(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q[:, 0]

    def picky(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise RuntimeError("only on Sundays")

    with pytest.raises(BadInput, match=r"\(2, 11, 5\)"):
        checkup_kernel(flat)
    with pytest.raises(BadInput, match=r"fails on tensors \(T, D\): RuntimeError: only on Sund"):
        checkup_kernel(picky, layout="(T, D)")
    with pytest.raises(BadInput, match="ZeroDivisionError"):
        checkup_kernel(lambda q, k, v: q / (1 // 0))


def test_the_reference_is_sdpa() -> None:
    q, k, v = torch.randn(3, 2, 3, 11, 5, dtype=torch.float64)
    mask = torch.ones(11, 11, dtype=torch.bool).tril()
    right = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(Inputs(q, k, v, mask, 0.3).reference(), right)


def test_every_wrong_recipe_differs_from_the_right_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = 2 * torch.randn(3, 2, 3, 11, 5, generator=generator)
    mask = torch.ones(11, 11, dtype=torch.bool).tril()
    inputs = Inputs(q, k, v, mask, 0.3)
    right = inputs.reference()
    same = [
        next(iter(recipe.items()))
        for recipe in departures(1)
        if torch.allclose(inputs.reference(recipe), right, atol=1e-6)
    ]
    assert len(mistakes()) > 25
    # Two of them show only with larger scores or another mask.
    assert same == [("mask", "finite"), ("mask", "causal")]


def test_a_kernel_that_requires_a_scale_and_equal_heads_says_so() -> None:
    def strict(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        if q.shape != k.shape:
            raise ValueError("other heads")
        return attention(q, k, v, mask, scale)

    report = checkup_kernel(strict)
    assert report.healthy
    assert "requires a scale" in report.finding("its own scale").headline
    assert "other heads" in report.finding("grouped heads").headline
