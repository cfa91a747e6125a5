"""Cases at the edge of a check: small logits, NaN after other calls, short maps, own documents."""

from typing import Any
from unittest import SkipTest

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncheck import (
    CannotCheck,
    CheckFailed,
    assert_deterministic,
    assert_documents_separate,
    assert_loss_shifted,
    checks_for,
    checkup,
)
from attncheck.leaks import explain_map
from examined.small import Served

V = 29


class Tokens(nn.Module):
    """Logits of each token alone, with small weights, and a loss if labels are given."""

    vocab_size = V

    def __init__(self, *, softmax_first: bool = False, penalty: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, 16)
        self.head = nn.Linear(16, V, bias=False)
        nn.init.normal_(self.head.weight, std=0.005)
        self.softmax_first, self.penalty = softmax_first, penalty

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.embed(ids))
        if labels is None:
            return {"logits": logits}
        given = logits.softmax(-1) if self.softmax_first else logits
        loss = F.cross_entropy(given[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        penalty = self.penalty * logits.logsumexp(-1).square().mean()
        return {"logits": logits, "loss": loss + penalty}


@pytest.mark.parametrize("seed", range(12))
def test_a_penalty_on_small_logits_is_no_second_softmax(seed: int) -> None:
    torch.manual_seed(seed)
    assert_loss_shifted(Tokens(penalty=1e-5))


@pytest.mark.parametrize("seed", range(3))
def test_a_second_softmax_is_found_for_small_logits(seed: int) -> None:
    torch.manual_seed(seed)
    with pytest.raises(CheckFailed, match="applied twice"):
        assert_loss_shifted(Tokens(softmax_first=True))


class AfterLonger(Tokens):
    """Gives NaN for each text that is longer than the first one, or after such a text."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.first = self.longest = 0

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        self.first = self.first or T
        is_longer = self.first < T if self.where == "longer" else self.longest > T
        self.longest = max(self.longest, T)
        logits = self.head(self.embed(ids))
        return logits * torch.nan if is_longer else logits


@pytest.mark.parametrize("where", ["longer", "after a longer one"])
def test_nan_is_not_rounding(where: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(CheckFailed):
        assert_deterministic(AfterLonger(where))


@pytest.mark.parametrize("T", [3, 4, 5, 8, 9, 32])
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_mask_that_is_off_is_named_at_every_length(T: int, ahead: int) -> None:
    if ahead >= T - 1:
        pytest.skip("every position reads all")
    i = torch.arange(T)
    found = explain_map(i <= i[:, None] + ahead)
    assert found is not None and f"up to t + {ahead}" in found.what


class Packed(nn.Module):
    """Attends within documents, whose lengths it stacks for all rows of a batch."""

    vocab_size = V

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, 16)

    def forward(self, ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        T = ids.shape[1]
        may = torch.ones(T, T, dtype=torch.bool).tril()[None]
        if document_ids is not None:
            torch.stack([each.unique_consecutive(return_counts=True)[1] for each in document_ids])
            may = may & (document_ids[:, :, None] == document_ids[:, None, :])
        scores = (x @ x.mT).masked_fill(~may, -torch.inf)
        return scores.softmax(-1) @ x


def test_rows_may_need_equally_many_documents() -> None:
    torch.manual_seed(0)
    assert_documents_separate(
        Packed(), call=lambda model, ids, documents: model(ids, document_ids=documents)
    )


class BesideEncoder(Served):
    """A decoder that can stand beside an encoder, as GPT-2 can."""

    def forward(self, input_ids: Tensor, encoder_hidden_states: object = None, labels=None):
        return super().forward(input_ids, labels=labels)


@pytest.mark.parametrize(
    ("shift", "status"), [(1, "ok"), (0, "not applicable"), (2, "fault"), (-1, "fault")]
)
def test_the_loss_of_a_decoder_beside_an_encoder_is_examined(shift: int, status: str) -> None:
    torch.manual_seed(0)
    statuses = {r.check: r.status for r in checkup(BesideEncoder(shift=shift)).results}
    assert statuses["loss"] == status


def by_mask(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.one_hot(ids, V).double().cumsum(1)


@pytest.mark.parametrize(
    ("model", "given", "check"),
    [
        (by_mask, {}, "padding"),
        (Served(), {"call": lambda model, ids: model(ids)}, "padding"),
        (Served(), {"call": lambda model, ids: model(ids)}, "cache"),
        (Served(), {"call": lambda model, ids: model(ids)}, "loss"),
        (Served(), {"causal": False}, "loss"),
    ],
)
def test_what_an_argument_suggests_has_a_row_that_says_why_it_is_not_tried(
    model: Any, given: dict[str, Any], check: str
) -> None:
    results = checkup(model, vocab_size=V, block_size=24, **given).results
    (row,) = [result for result in results if result.check == check]
    assert row.status == "not applicable" and "give" in row.message


def test_in_a_test_suite_what_does_not_apply_is_skipped_and_what_is_accepted_passes() -> None:
    torch.manual_seed(0)
    model = Served(shift=2)
    checks = {check.__name__: check for check in checks_for(model, accept=["loss"])}
    assert checks["loss"]().startswith("accepted: targets are shifted twice")
    checks = {check.__name__: check for check in checks_for(model, causal=False)}
    with pytest.raises(SkipTest, match="not applicable"):
        checks["causal"]()


def test_a_suspicion_is_counted_and_a_fault_if_it_is_asked_for() -> None:
    torch.manual_seed(0)
    model = Served(shift=0)
    plain, strict = checkup(model), checkup(model, strict=True)
    assert (plain.suspicions, plain.exit_code, strict.exit_code) == (1, 0, 1)
    assert "1 suspicion" in plain.verdict and plain.healthy and not strict.healthy


def test_a_property_that_the_model_has_no_place_for_cannot_be_accepted() -> None:
    with pytest.raises(CannotCheck, match="no property of this model is cash; there are"):
        checkup(Served(), accept=["cash"])


def test_an_assertion_that_fails_shows_no_frames_of_its_own() -> None:
    with pytest.raises(CheckFailed) as caught:
        assert_loss_shifted(Served(shift=2))
    assert len(caught.traceback) == 2  # the line above, and the assertion, which pytest hides
