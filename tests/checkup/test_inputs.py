"""Real token ids, keyword inputs, rare tokens, budgets, and the reported coverage."""

import math

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import Status, assert_causal, checkup
from attnlab.errors import BadInput
from tests.faults import in_gpt

T = 19


class Separator(nn.Module):
    """A causal model, except that one token id lets its row see the mean of the whole sequence."""

    def __init__(self, vocab_size: int, separator: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vocab_size, self.block_size = vocab_size, T
        self.embed, self.head = nn.Embedding(vocab_size, 8), nn.Linear(8, vocab_size)
        self.separator = separator

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        before = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        open_ = ids[..., None] == (-1 if self.separator is None else self.separator)
        logits: Tensor = self.head(torch.where(open_, x.mean(1, keepdim=True), before))
        return logits


@pytest.mark.parametrize("separator", [3, 1000, 1999])
def test_a_leak_of_one_rare_token_is_found_and_its_id_is_named(separator: int) -> None:
    report = checkup(Separator(2000, separator), vocab_size=2000, block_size=T, seconds=60)
    assert report.causes == ("token_leak",), [d.headline for d in report.diagnoses]
    assert f"token id {separator}," in report.diagnoses[0].headline


@pytest.mark.long
def test_real_ids_find_leaks_that_random_ids_of_a_large_vocabulary_miss() -> None:
    separator, V = 19_999, 20_000
    text = torch.randint(5, 200, (8, 2 * T), generator=torch.Generator().manual_seed(0))
    text[:, ::7] = separator
    report = checkup(Separator(V, separator), vocab_size=V, block_size=T, ids=text)
    assert not report.healthy
    assert report.causes != ("token_leak",)  # the text contains it
    missed = checkup(Separator(V, 10_000), vocab_size=V, block_size=T)
    assert missed.healthy
    assert "of 20000 ids tried each" in missed.settings["tokens"]  # and the report says how few


def test_the_number_of_ids_tried_is_reported() -> None:
    report = checkup(Separator(500, None), vocab_size=500, block_size=T, seconds=60)
    assert report.diagnoses == ()
    assert report.settings["tokens"] == "uniform; 500 of 500 ids tried each"
    short = checkup(Separator(6000, None), vocab_size=6000, block_size=T, seconds=0.01)
    tried = short.settings["tokens"]
    assert "6000" not in tried.replace("of 6000", "")


def test_the_model_gets_only_the_given_ids() -> None:
    seen: set[int] = set()

    def model(ids: Tensor) -> Tensor:
        seen.update(ids.flatten().tolist())
        return nn.functional.one_hot(ids, 100).double()

    text = torch.tensor([[5, 9, 5, 7, 9, 7, 5, 5, 9, 7, 5, 9], [7] * 12])
    report = checkup(model, vocab_size=100, ids=text)
    assert seen == {5, 7, 9}
    assert report.settings["block_size"] == "12"
    assert report.settings["lengths"].startswith("12, ")
    assert report.settings["tokens"].startswith("from the given ids")


def test_training_uses_the_given_ids_only() -> None:
    class Three(nn.Module):
        """An embedding of three ids of a hundred."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(3, 8), nn.Linear(8, 100)

        def forward(self, ids: Tensor) -> Tensor:
            rows = torch.searchsorted(torch.tensor([5, 7, 9]), ids)
            assert bool(torch.isin(ids, torch.tensor([5, 7, 9])).all()), "an id that was not given"
            logits: Tensor = self.head(self.embed(rows).cumsum(1))
            return logits

    text = torch.tensor([[5, 9, 5, 7, 9, 7, 5, 5, 9, 7, 5, 9]])
    report = checkup(Three(), vocab_size=100, ids=text, prove=True, seconds=20)
    assert report.finding("trained").status is Status.OK
    assert report.finding("proof").status is Status.OK


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[1, 2, 300]]), "vocab_size - 1 = 28"),
        (torch.tensor([1, 2, 3]), r"\(N, L\)"),
        (torch.zeros(2, 9), r"\(N, L\)"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(ids: Tensor, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        checkup(in_gpt.build("healthy", T, 1, 2), ids=ids)


class NeedsInputs(nn.Module):
    """Takes a mask (N, T), one (N, T, T), lengths (N,), and a word; refuses what does not fit."""

    def __init__(self, fault: str = "healthy") -> None:
        super().__init__()
        self.net = in_gpt.build(fault, T, 1, 2)

    def forward(
        self, tokens: Tensor, keep: Tensor, pairs: Tensor, lengths: Tensor, how: str
    ) -> Tensor:
        n, t = tokens.shape
        assert keep.shape == (n, t)
        assert pairs.shape == (n, t, t)
        assert lengths.shape == (n,)
        assert int(lengths.max()) <= t
        assert how == "sum"
        logits: Tensor = self.net(tokens) * keep[..., None]
        return logits


@pytest.mark.parametrize(("fault", "causes"), [("healthy", ()), ("peek_one", ("off_by_one",))])
def test_keyword_inputs_are_cut_and_repeated(fault: str, causes: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    example = {
        "tokens": torch.randint(29, (3, 15), generator=generator),
        "keep": torch.ones(3, 15, dtype=torch.long),
        "pairs": torch.ones(3, 15, 15),
        "lengths": torch.tensor([15, 4, 9]),
        "how": "sum",
    }
    report = checkup(NeedsInputs(fault), vocab_size=29, block_size=T, example=example)
    assert report.causes == causes, [d.headline for d in report.diagnoses]
    with pytest.raises(BadInput, match="keep"):
        checkup(NeedsInputs(fault), vocab_size=29, block_size=T)
    with pytest.raises(BadInput, match="no token ids"):
        checkup(NeedsInputs(fault), vocab_size=29, example={"how": "sum"})


def test_padding_ids_are_not_drawn_as_text() -> None:
    class Pads(nn.Module):
        """A model that blocks id 0 itself; a sequence of only id 0 gives NaN."""

        vocab_size, block_size, pad_token_id = 29, T, 0

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(29, 8)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            n = ids.shape[1]
            visible = torch.ones(n, n, dtype=torch.bool).tril() & (ids != 0)[:, None]
            weights = (x @ x.mT / 8**0.5).masked_fill(~visible, -math.inf).softmax(-1)
            logits: Tensor = (weights @ x) @ self.embed.weight.T
            return logits

    assert checkup(Pads()).finding("finite").status is Status.OK


@pytest.mark.long
def test_a_budget_lifts_the_cap_and_lists_what_was_not_examined() -> None:
    model = Separator(7, None)
    model.block_size = 300
    capped = checkup(model)
    assert capped.settings["lengths"].startswith("256, ")
    assert capped.finding("lengths").numbers["positions"] == 300
    assert checkup(model, block_size=20).settings["block_size"] == "20"
    hurried = checkup(model, seconds=0.05)
    assert hurried.unseen
    assert "no time" not in hurried.error
    left_out = [f.detector for f in hurried.findings if "no time was left" in f.headline]
    assert "training mode" in left_out
    assert hurried.settings["modes"] == "eval"
    assert checkup(in_gpt.build("healthy", T, 1, 2)).settings["modes"] == "eval and training"
    with pytest.raises(BadInput, match="seconds = 0 must be above 0"):
        checkup(model, seconds=0)


def test_all_pairs_are_mentioned_only_if_all_were_tried() -> None:
    model = in_gpt.build("one_pair", 37, 1, 2)
    assert "no other pair does" in checkup(model).diagnoses[0].headline
    slow = checkup(in_gpt.build("one_pair", 256, 1, 2), seconds=0.5)
    future = slow.finding("future")
    tried = "256 of 256" in future.headline
    assert tried or "no other pair does" not in future.headline


def test_assert_causal_takes_the_same_inputs() -> None:
    with pytest.raises(AssertionError, match="token id 1000"):
        assert_causal(Separator(2000, 1000), vocab_size=2000, block_size=T, seconds=60)
    text = torch.arange(38).reshape(2, T)
    assert_causal(checkup(Separator(2000, 1000), vocab_size=2000, ids=text))  # not in this text


def test_a_budget_limits_the_gradients_and_says_how_many_were_computed() -> None:
    report = checkup(in_gpt.build("healthy", 256, 1, 2), seconds=0.2)
    headline = report.finding("gradient").headline
    assert report.finding("gradient").status is Status.OK
    count = int(headline.split("from ")[1].split(" of 256")[0])
    assert 0 < count < 256
    leaking = checkup(in_gpt.build("peek_one", 256, 1, 2), seconds=0.2)
    assert leaking.finding("gradient").status is Status.FAULT
