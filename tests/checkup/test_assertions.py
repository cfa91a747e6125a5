"""The assertions, one for each property."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import (
    CheckupFailed,
    assert_cache_equal,
    assert_causal,
    assert_padding_ignored,
    assert_rows_independent,
    checkup,
)
from attnlab.errors import BadInput
from tests.faults import in_gpt, served

T = 19


@pytest.mark.parametrize(
    ("check", "faults"),
    [
        (assert_cache_equal, ["cache_restarts", "cache_top_left", "cache_forgets"]),
        (assert_padding_ignored, ["padding_ignored", "padding_of_row_0"]),
    ],
)
def test_assertions_on_cache_and_padding(check: Callable[..., None], faults: list[str]) -> None:
    check(served.build(""))
    for fault in faults:
        with pytest.raises(CheckupFailed, match="fails the test of"):
            check(served.build(fault))
    with pytest.raises(BadInput, match="cannot be examined"):
        check(in_gpt.build("healthy", T, 1, 2))


def test_assertion_on_independent_rows() -> None:
    assert_rows_independent(in_gpt.build("healthy", T, 1, 2))
    assert_rows_independent(in_gpt.build("flipped", T, 1, 2))  # another fault
    for fault in ("row_before", "batch_mean", "batch_first"):
        with pytest.raises(CheckupFailed, match=r"rows|batch") as failed:
            assert_rows_independent(in_gpt.build(fault, T, 1, 2))
        assert failed.value.report.seconds > 0


def test_a_failure_contains_the_report() -> None:
    with pytest.raises(CheckupFailed) as caught:
        assert_causal(in_gpt.build("flipped", T, 1, 2))
    assert caught.value.report.causes == ("flipped_mask",)
    assert "which position reads which" not in caught.value.report.to_text()
    assert "mask flipped" in caught.value.report.to_text()


class Padded(nn.Module):
    """One layer with a padding mask of either polarity, under PyTorch's name for it."""

    vocab_size, block_size = 29, T

    def __init__(self, *, true_is_padding: bool, right_only: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(29, 12), nn.Linear(12, 29)
        self.attend = nn.MultiheadAttention(12, 3, batch_first=True)
        self.true_is_padding, self.right_only = true_is_padding, right_only

    def forward(self, ids: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        x, t = self.embed(ids), ids.shape[1]
        blocked = torch.ones(t, t, dtype=torch.bool).triu(1)
        if key_padding_mask is not None:
            padded = key_padding_mask.bool() == self.true_is_padding
            if self.right_only:  # padding shifts the positions and is read as the end
                n = padded.sum(1, keepdim=True)
                padded = torch.arange(t) >= t - n
            blocked = blocked | padded[:, None].repeat_interleave(3, 0)
            blocked = blocked & ~torch.eye(t, dtype=torch.bool)  # no query without keys
        logits: Tensor = self.head(x + self.attend(x, x, x, attn_mask=blocked)[0])
        return logits


@pytest.mark.parametrize("true_is_padding", [True, False])
def test_both_polarities_of_a_padding_mask_are_recognized(true_is_padding: bool) -> None:
    report = checkup(Padded(true_is_padding=true_is_padding))
    assert report.diagnoses == ()
    meaning = "True = padding" if true_is_padding else "1 = token"
    assert report.finding("padding").headline.endswith(f"(key_padding_mask: {meaning})")


class FinfoOfItsInput(nn.Module):
    """Two layers that block by the lowest number of their dtype, and cast to fp32 afterwards.

    In fp64 that number becomes -inf, and a query without keys NaN, which the next layer spreads.
    """

    vocab_size, block_size = 29, T

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(29, 12), nn.Linear(12, 29)
        nn.init.normal_(self.embed.weight, std=0.5)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x, t = self.embed(ids), ids.shape[1]
        visible = torch.ones(len(ids), t, t, dtype=torch.bool).tril()
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None]
        blocked = x.new_zeros(visible.shape).masked_fill(~visible, torch.finfo(x.dtype).min)
        for _ in range(2):
            scores = x @ x.mT / 12**0.5 + blocked
            x = x + scores.float().softmax(-1).to(x.dtype) @ x
        logits: Tensor = self.head(x)
        return logits


def test_nan_caused_by_the_cast_to_fp64_is_not_suspicious() -> None:
    model, keep = FinfoOfItsInput(), torch.ones(1, T, dtype=torch.long)
    keep[:, :3] = 0
    ids = torch.arange(T)[None]
    assert model(ids, keep).isfinite().all()
    assert model.double()(ids, keep).isnan().any()
    report = checkup(model.float())
    assert report.diagnoses == (), [d.headline for d in report.diagnoses]
    assert "read on neither side" in report.finding("padding").headline


def test_padding_that_is_handled_on_one_side_only_is_found() -> None:
    report = checkup(Padded(true_is_padding=True, right_only=True))
    assert report.causes == ("padding_read",)
    assert "on the left" in report.diagnoses[0].headline
