"""Attention whose scores are not a product of queries and keys is recognized by its softmax."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention, Variant, masks, variant
from attnlab.attention.scores import AdditiveAttention
from attnlab.checkup import Report, Status, assert_causal, checkup
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.model_adapter import adapt
from attnlab.checkup.stress import record
from attnlab.checkup.whitebox import check_scale
from attnlab.init import init_weights
from attnlab.model import GPT

T = 19


def additive(**given: Any) -> GPT:
    attn = Variant(AdditiveAttention, given)
    net = GPT(attn, 29, block_size=T, n_layer=1, n_head=2, n_embd=16)
    init_weights(net, 0)
    return net


def results(report: Report) -> dict[str, Status]:
    return {finding.detector: finding.status for finding in report.findings}


def test_the_recorded_call_has_scores_pattern_and_values() -> None:
    net = additive().double()
    (call,), reason = record(adapt(net, 29, T), [T])
    assert reason == ""
    assert call.product is None
    assert call.module == "blocks.0.attn"
    assert call.queries is None
    assert call.raw.shape == (2, T, T)
    assert call.raw.isfinite().all()
    assert call.scores is not None
    assert (call.scores.isinf() == torch.ones(T, T, dtype=torch.bool).triu(1)).all()
    assert call.pattern is not None
    torch.testing.assert_close(call.pattern, call.scores.softmax(-1))
    assert call.values is not None
    assert call.values.shape == (2, T, 8)


def test_a_healthy_layer_has_no_findings() -> None:
    report = checkup(additive())
    assert report.diagnoses == ()
    found = results(report)
    assert found["rows"] is found["mask"] is found["heads"] is Status.OK
    assert found["stress"] is Status.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"may_attend": masks.flipped}, "flipped_mask"),
        ({"may_attend": masks.bidirectional}, "no_mask"),
        ({"may_attend": masks.peek_one}, "off_by_one"),
        ({"head_init": variant.identical}, "identical_heads"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_faults_of_additive_attention_are_named(given: dict[str, Any], cause: str) -> None:
    report = checkup(additive(**given))
    assert report.causes == (cause,)
    inside = {"identical_heads": "heads"}.get(cause, "mask")
    assert results(report)[inside] is Status.FAULT


class Distance(nn.Module):
    """Attention by distance, without a module for its scores: -|q - k|^2, softmax, average."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.layer = SelfAttention(AttentionConfig(16, 2, block_size=T))
        self.causal = causal
        self.embed = nn.Embedding(29, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.layer.split(x)
        scores = -(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
        if self.causal:
            blocked = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(blocked, -torch.inf)
        y = scores.softmax(-1) @ v
        x = x + self.layer.proj(y.transpose(1, 2).flatten(2))
        return x @ self.embed.weight.T


def test_scores_by_distance_are_recognized() -> None:
    torch.manual_seed(0)
    assert_causal(Distance(causal=True), vocab_size=29, block_size=T)
    report = checkup(Distance(causal=False), vocab_size=29, block_size=T)
    assert report.causes == ("no_mask",)
    assert results(report)["mask"] is Status.FAULT


class Biased(nn.Module):
    """One head with a computed bias, which is added to the scores from the left.

    Its length can be fixed, or a multiple of 8.
    """

    def __init__(self, lengths: str = "any", D: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lengths = lengths
        self.embed, self.head, self.out = nn.Embedding(29, 16), nn.Linear(16, 29), nn.Linear(D, 16)
        self.q, self.k, self.v = (nn.Linear(16, D, bias=False) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x, t = self.embed(ids), ids.shape[1]
        if self.lengths == "fixed" and t != T:
            raise ValueError("another length")
        if self.lengths == "multiples" and t % 8:
            raise ValueError("not a multiple of 8")
        bias = torch.ones(t, t).triu(1).to(x) * -1e30
        scores = bias + (self.q(x) @ self.k(x).mT) / self.q.out_features**0.5
        logits: Tensor = self.head(x + self.out(scores.softmax(-1) @ self.v(x)))
        return logits


def test_a_bias_on_the_left_is_not_taken_for_the_scale() -> None:
    report = checkup(Biased(), vocab_size=29, block_size=T)
    assert report.diagnoses == (), [d.headline for d in report.diagnoses]
    assert report.finding("scale").numbers["scale"] == pytest.approx(0.25)


def test_weights_as_wide_as_the_only_length_are_not_taken_for_scores() -> None:
    report = checkup(Biased("fixed", D=T), vocab_size=29, block_size=T)
    assert report.settings["attention calls seen"] == "1"
    assert report.diagnoses == (), [d.headline for d in report.diagnoses]


def test_a_model_of_certain_lengths_is_recorded_at_one_of_them() -> None:
    report = checkup(Biased("multiples", D=64), vocab_size=29, block_size=64)
    assert report.settings["attention calls seen"] == "1"
    assert report.finding("mask").status is Status.OK


def test_different_unusual_scales_are_all_told() -> None:
    """As in GPT-2 with scores that are also divided by the number of the layer."""
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(0))
    raw = x @ x.mT
    calls = [
        AttentionCall(f"layer {n}", x, x, raw, factors=[("", 0.25 / n)], masked=raw,
                      pattern=raw.softmax(-1))
        for n in (2, 3, 5)
    ]  # fmt: skip
    (found,) = check_scale(calls, 2.0, untrained=False)
    assert "layer 2 and 2 more: scores are scaled by 0.05 to 0.125" in found.headline
