"""Masks that block by a finite number: recognized by the scores that break them."""

import math

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import Status, checkup
from attnlab.checkup.model_adapter import adapt
from attnlab.checkup.stress import check_dropout

V, T, C = 29, 19, 64


class Filled(nn.Module):
    """One head whose blocked scores are `fill`; the scale is applied to the queries or after."""

    def __init__(self, fill: float, *, scale_queries: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fill, self.scale_queries = fill, scale_queries
        self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
        self.q, self.k, self.v = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, ids: Tensor) -> Tensor:
        x, t = self.embed(ids), ids.shape[1]
        q, k, v = self.q(x), self.k(x), self.v(x)
        scale = 1 / math.sqrt(C)
        scores = (q * scale) @ k.mT if self.scale_queries else (q @ k.mT) * scale
        blocked = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(blocked, self.fill).softmax(-1)
        logits: Tensor = self.head(x + weights @ v)
        return logits


@pytest.mark.parametrize("fill", [-40.0, -100.0, -500.0])
def test_a_fill_that_leaves_a_tiny_weight_is_named_and_ends_nothing(fill: float) -> None:
    """exp(-40) is a number above 0, but moves no logit."""
    report = checkup(Filled(fill), vocab_size=V, block_size=T)
    assert report.error == ""
    assert report.causes == ("finite_fill",), [d.headline for d in report.diagnoses]


@pytest.mark.parametrize("scale_queries", [False, True])
def test_scores_are_raised_to_the_same_size_wherever_they_are_scaled(scale_queries: bool) -> None:
    """Most scores are below 2e5, so that a fill of -5e5 holds."""
    report = checkup(Filled(-5e5, scale_queries=scale_queries), vocab_size=V, block_size=T)
    assert report.diagnoses == (), [d.headline for d in report.diagnoses]


class InPlace(Filled):
    """Scores are scaled and masked in place."""

    def forward(self, ids: Tensor) -> Tensor:
        x, t = self.embed(ids), ids.shape[1]
        scores = self.q(x) @ self.k(x).mT
        scores /= math.sqrt(C)
        scores.masked_fill_(torch.ones(t, t, dtype=torch.bool).triu(1), self.fill)
        logits: Tensor = self.head(x + scores.softmax(-1) @ self.v(x))
        return logits


def test_scores_that_are_masked_in_place_are_enlarged_too() -> None:
    assert checkup(InPlace(-1e4), vocab_size=V, block_size=T).causes == ("finite_fill",)
    assert checkup(InPlace(-math.inf), vocab_size=V, block_size=T).diagnoses == ()


class OwnLowest(nn.Module):
    """One layer whose blocked scores are -50, with queries of this length."""

    vocab_size, block_size = 29, 19

    def __init__(self, length: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(29, 16), nn.Linear(16, 29)
        self.length = length

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        blocked = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        scores = nn.functional.normalize(x, dim=-1) @ nn.functional.normalize(x, dim=-1).mT
        # Keys are the opposite of queries, so that a query's own score is the lowest.
        weights = (-self.length * scores).masked_fill(blocked, -50.0).softmax(-1)
        logits: Tensor = self.head(x + weights @ x)
        return logits


@pytest.mark.parametrize(("length", "status"), [(1.0, "suspicious"), (64.0, "fault")])
def test_a_finite_fill_is_a_fault_within_reach_of_the_scores(length: float, status: str) -> None:
    report = checkup(OwnLowest(length), severity={"other_scale": "ok", "frozen_scores": "ok"})
    found = next(d for d in report.diagnoses if d.cause in ("finite_fill", "no_mask"))
    assert found.status.value == status, report.to_text()
    assert report.healthy is (status == "suspicious")


def test_scores_are_not_called_free_of_dropout_if_none_were_seen() -> None:
    model = nn.Sequential(nn.Embedding(29, 8), nn.Linear(8, 29))
    found = check_dropout(adapt(model, 29, 16), 16)
    assert found.status is Status.NOT_APPLICABLE
    assert "no attention was found" in found.headline
