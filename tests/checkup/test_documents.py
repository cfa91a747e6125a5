"""Packed documents, windows, padding, batches and autocast: what a model is meant to do."""

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import (
    CheckupFailed,
    Status,
    assert_causal,
    assert_documents_separate,
    assert_padding_ignored,
    checkup,
)
from attnlab.checkup.model_adapter import adapt
from attnlab.checkup.serving import check_padding, check_precision
from attnlab.errors import BadInput
from tests.faults import in_gpt, served

V, C, T = 29, 16, 40


class Packed(nn.Module):
    """Two layers whose documents begin with token 0, or end with it, as the habits say."""

    vocab_size, block_size = V, T

    def __init__(self, *habits: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.habits = habits
        self.embed, self.place = nn.Embedding(V, C), nn.Embedding(T, C)
        self.qkv, self.head = nn.Linear(C, 3 * C), nn.Linear(C, V)

    def forward(self, ids: Tensor, document: Tensor | None = None) -> Tensor:
        t = torch.arange(ids.shape[1])
        if document is None:
            document = (ids == 0).long().cumsum(1)
            if "ends" in self.habits:
                document = document - (ids == 0).long()
        first = torch.cat([document[:, :1] >= 0, document[:, 1:] != document[:, :-1]], 1)
        begin = torch.where(first, t, 0).cummax(1).values  # (B, T)
        x = self.embed(ids) + self.place(t - begin if "reset" in self.habits else t)
        if "smear" in self.habits or "smear inside" in self.habits:
            shifted = nn.functional.pad(x, (0, 0, 1, -1))
            x = x + shifted * (1 if "smear" in self.habits else (~first)[..., None])
        visible = t[:, None] >= t
        if "open" not in self.habits:
            visible = visible & (document[:, :, None] == document[:, None])
        for _ in range(2):
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = (q @ k.mT / C**0.5).masked_fill(~visible, -torch.inf).softmax(-1)
            x = x + weights @ v
        logits: Tensor = self.head(x)
        return logits


def with_documents(model: nn.Module, ids: Tensor, document: Tensor) -> object:
    return model(ids, document)


@pytest.mark.parametrize(
    "habits", [(), ("ends",), ("smear inside",), ("reset",), ("ends", "reset")]
)
def test_separate_documents_are_healthy(habits: tuple[str, ...]) -> None:
    model = Packed(*habits)
    assert_documents_separate(model, separator=0, reset_positions="reset" in habits)
    assert_documents_separate(model, with_documents, reset_positions="reset" in habits)
    with pytest.raises(BadInput, match="neither documents nor separator"):
        assert_documents_separate(model)


@pytest.mark.parametrize(
    ("habits", "reset", "cause"),
    [
        (("open",), False, "documents_read"),
        (("open", "ends"), False, "documents_read"),
        (("smear",), False, "documents_smeared"),
        ((), True, "positions_not_reset"),
        (("ends",), True, "positions_not_reset"),
    ],
)
def test_documents_that_mix_are_faults(habits: tuple[str, ...], reset: bool, cause: str) -> None:
    for call in (None, with_documents):
        with pytest.raises(CheckupFailed, match=cause):
            assert_documents_separate(
                Packed(*habits), call, separator=None if call else 0, reset_positions=reset
            )
    report = checkup(Packed(*habits), separator=0, reset_positions=reset)
    assert cause in report.causes


class Windows(nn.Module):
    """Two layers with windows of these numbers of keys."""

    vocab_size, block_size = V, T

    def __init__(self, *widths: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.widths = widths
        self.embed, self.qkv, self.head = nn.Embedding(V, C), nn.Linear(C, 3 * C), nn.Linear(C, V)

    def forward(self, ids: Tensor) -> Tensor:
        x, t = self.embed(ids), torch.arange(ids.shape[1])
        back = t[:, None] - t
        for width in self.widths:
            q, k, v = self.qkv(x).chunk(3, -1)
            seen = (back >= 0) & (back < width)
            x = x + (q @ k.mT / C**0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v
        logits: Tensor = self.head(x)
        return logits


def test_the_windows_of_all_layers_are_measured_and_compared() -> None:
    report = checkup(Windows(8, 99), window=[8, None])
    assert report.settings["windows"] == "8, all"
    assert report.finding("windows").status is Status.OK
    wrong = checkup(Windows(9, 9), window=8)
    assert wrong.causes == ("window_differs",)
    assert "attends to 9 keys, not to 8" in wrong.diagnoses[0].headline
    few = checkup(Windows(8, 8), window=[8])
    assert "2 calls were seen" in few.finding("windows").headline
    counts = lambda ids: nn.functional.one_hot(ids, V).double().cumsum(1)  # noqa: E731
    outside = checkup(counts, vocab_size=V, window=8)
    assert "the windows (no attention was recognized)" in outside.unseen
    assert outside.verdict == "Healthy from outside; inside not examined"


def test_padding_can_be_meant_for_one_side() -> None:
    report = checkup(served.build("padding_ignored"), padding="right")
    assert report.diagnoses == ()  # a causal model never reads padding on the right
    assert_padding_ignored(served.build("padding_ignored"), "right")
    with pytest.raises(CheckupFailed, match="padding_read"):
        assert_padding_ignored(served.build("padding_ignored"), "left")
    with pytest.raises(BadInput, match="padding = top must be left, right or None"):
        checkup(served.build("healthy"), padding="top")


def test_an_inverted_padding_mask_is_suspicious() -> None:
    report = checkup(served.build("padding_inverted"))
    assert report.causes == ("padding_inverted",), [d.headline for d in report.diagnoses]


class OnlyBatches(nn.Module):
    """A GPT that takes a fixed batch, or none above it."""

    vocab_size, block_size = V, 19

    def __init__(self, fault: str, sizes: range) -> None:
        super().__init__()
        self.net, self.sizes = in_gpt.build(fault, 19, 1, 2), sizes

    def forward(self, ids: Tensor) -> Tensor:
        if len(ids) not in self.sizes:
            raise RuntimeError(f"the batch has size {len(ids)}, not one of {self.sizes}")
        logits: Tensor = self.net(ids)
        return logits


@pytest.mark.parametrize("size", [1, 4, 8])
def test_fixed_batch_sizes_are_examined(size: int) -> None:
    exact = range(size, size + 1)
    healthy = checkup(OnlyBatches("healthy", exact), batch_size=size)
    assert healthy.diagnoses == (), [d.headline for d in healthy.diagnoses]
    assert healthy.error == ""
    assert checkup(OnlyBatches("peek_one", exact), batch_size=size).causes == ("off_by_one",)
    at_most = checkup(OnlyBatches("healthy", range(1, size + 1)))
    assert at_most.error == ""
    assert at_most.diagnoses == (), [d.headline for d in at_most.diagnoses]


def test_a_batch_size_is_asked_for() -> None:
    with pytest.raises(BadInput, match="and batch_size if it takes only one"):
        checkup(OnlyBatches("healthy", range(4, 5)))


class HalfWeights(nn.Module):
    """A model with layers in two dtypes, which runs under autocast only."""

    vocab_size, block_size = V, 19

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.net = in_gpt.build(fault, 19, 1, 2)
        for part in self.net.blocks.modules():
            if isinstance(part, nn.Linear):
                part.bfloat16()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids)
        return logits


def test_a_model_is_called_under_autocast() -> None:
    with pytest.raises(BadInput, match="its dtypes differ; give autocast"):
        checkup(HalfWeights("healthy"))
    report = checkup(HalfWeights("healthy"), autocast=torch.bfloat16)
    assert report.healthy, [d.headline for d in report.diagnoses]
    with pytest.raises(CheckupFailed, match="not causal"):
        assert_causal(checkup(HalfWeights("peek_one"), autocast=torch.bfloat16))


def test_separators_and_windows_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput, match="separator = 29 must be from 0 to 28"):
        checkup(Packed(), separator=V)
    with pytest.raises(BadInput, match="window = 0 must be at least 1"):
        checkup(Windows(8, 8), window=[8, 0])


class PadsRight(nn.Module):
    """A model that refuses padding on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.net = served.build("healthy")

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None and not bool(attention_mask[:, 0].all()):
            raise ValueError("pad on the right")
        logits: Tensor = self.net(input_ids, attention_mask).logits
        return logits


def test_padding_that_is_refused_on_one_side_is_examined_on_the_other() -> None:
    found = check_padding(adapt(PadsRight(), vocab_size=V, block_size=T))
    assert found.status is Status.OK
    assert (
        "not read on the right (attention_mask: 1 = token; refused on the left" in found.headline
    )
    assert "pad on the right" in found.headline


def test_padding_is_examined_with_as_many_rows_of_real_ids() -> None:
    ids = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(0))
    assert check_padding(adapt(served.build("healthy"), ids=ids)).status is Status.OK


def test_a_model_is_not_compared_with_itself_for_its_precision() -> None:
    model = adapt(served.build("healthy").double())
    assert set(check_precision(model, model).numbers) == {"bfloat16"}
