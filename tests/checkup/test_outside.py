"""Models that read ahead outside attention, and models that only seem to."""

import math
import random

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import Status, checkup
from attnlab.checkup.blackbox import check_future
from attnlab.checkup.dependence import Dependence
from attnlab.model import GPT
from tests.faults import in_gpt
from tests.faults.planted import FAULTS

V, T = 29, 19


def small(fault: str = "healthy") -> GPT:
    return in_gpt.build(fault, T, 1, 2)


class Reversed(nn.Module):
    """A causal model applied to the reversed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids.flip(1)).flip(1)  # t reads t and what follows
        return logits


class Backward(Reversed):
    """A language model that reads backward, examined as if it read forward."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = super().forward(ids)
        return torch.cat([logits[:, 1:], torch.zeros_like(logits[:, :1])], 1)


class CannotBeAskedAgain(Reversed):
    """Raises an error for batches of the length at which its patterns are recorded."""

    def forward(self, ids: Tensor) -> Tensor:
        if len(ids) > 2 and ids.shape[1] == T - 1:
            raise ValueError("no batches of this length")
        return super().forward(ids)


@pytest.mark.parametrize("kind", [Reversed, Backward, CannotBeAskedAgain])
def test_a_reversed_sequence_is_reported_outside_attention(kind: type[nn.Module]) -> None:
    report = checkup(kind(), vocab_size=V, block_size=T)
    assert report.causes == ("outside",), [d.headline for d in report.diagnoses]
    assert report.diagnoses[0].headline.endswith("though every attention pattern is causal")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "seed"),
    # expert_choice: in these draws few positions read ahead
    [("ours", 1), ("ours", 110), ("ours", 213), ("other", 60), ("other", 159)],
)
def test_leaks_with_causal_patterns_are_reported_outside_attention(model: str, seed: int) -> None:
    fault = next(p for p in FAULTS if p.name == "expert_choice")
    report = checkup(fault.build(model, seed), vocab_size=V, block_size=fault.block_size)
    assert report.causes == ("outside",), [d.headline for d in report.diagnoses]
    assert "topk over the positions" in report.diagnoses[0].headline


class Buckets(nn.Module):
    """Causal attention within buckets of hashed tokens."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.embed, self.head, self.q = nn.Embedding(V, 8), nn.Linear(8, V), nn.Linear(8, 8)

    def buckets(self, ids: Tensor, q: Tensor) -> Tensor:
        """(B, T) int64."""
        if self.kind == "hash of the id":  # another one in every process
            return torch.tensor([[hash(str(i)) % 4 for i in row] for row in ids.tolist()])
        if self.kind == "torch":
            planes = torch.randn(8, 3)
        else:
            planes = torch.tensor([[random.gauss(0, 1) for _ in range(3)] for _ in range(8)])
        return (q @ planes.to(q) > 0).long() @ torch.tensor([1, 2, 4])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q = self.q(x)
        bucket = self.buckets(ids, q)
        t = ids.shape[1]
        visible = torch.ones(t, t, dtype=torch.bool).tril()
        visible = visible & (bucket[:, :, None] == bucket[:, None, :])
        weights = (q @ q.mT / 8**0.5).masked_fill(~visible, -math.inf).softmax(-1)
        logits: Tensor = self.head(x + weights @ x)
        return logits


@pytest.mark.parametrize("kind", ["torch", "python", "hash of the id"])
def test_random_hashing_is_reported_neither_as_a_leak_nor_as_dropout(kind: str) -> None:
    report = checkup(Buckets(kind), vocab_size=V, block_size=T)
    expected = () if kind == "hash of the id" else ("random_in_eval",)
    assert report.causes == expected, [d.headline for d in report.diagnoses]
    assert report.healthy
    assert report.finding("future").status is Status.OK


class Sorted(Buckets):
    """Buckets of a fixed size, cut from the sequence in the order of their hashes (Reformer)."""

    def buckets(self, ids: Tensor, q: Tensor) -> Tensor:
        order = self.q.weight.new_tensor(range(8)) @ q.mT  # (B, T), a hash
        return order.argsort(-1).argsort(-1) // 4


def test_chunks_of_sorted_hashes_are_a_leak_and_the_sort_is_named() -> None:
    report = checkup(Sorted("fixed"), vocab_size=V, block_size=T)
    assert report.causes == ("outside",), [d.headline for d in report.diagnoses]
    assert "sort over the positions" in report.diagnoses[0].headline


class SortsBesideItsLeak(nn.Module):
    """Sorts the positions, which changes nothing, and reads the mean of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids)
        order = logits.argsort(1)
        back = logits.gather(1, order).gather(1, order.argsort(1))
        return back + logits.mean(1, keepdim=True)


def test_a_sort_that_does_not_leak_is_not_named() -> None:
    report = checkup(SortsBesideItsLeak(), vocab_size=V, block_size=T)
    assert report.causes == ("outside",), [d.headline for d in report.diagnoses]
    assert "sort" not in report.diagnoses[0].headline


class OpenAtFullLength(nn.Module):
    """The mask is missing only for sequences of the full length."""

    def __init__(self) -> None:
        super().__init__()
        self.masked, self.open = small(), small("bidirectional")

    def forward(self, ids: Tensor) -> Tensor:
        return self.open(ids) if ids.shape[1] == T else self.masked(ids)


def test_a_pattern_is_evidence_only_for_its_own_length() -> None:
    report = checkup(OpenAtFullLength(), vocab_size=V, block_size=T)
    assert report.causes == ("late_leak",)


class FurtherKey(nn.Module):
    """Causal attention with an additional zero key that belongs to no token."""

    def __init__(self, ahead: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, 12), nn.Linear(12, V)
        self.place = nn.Embedding(T, 12)
        self.attend = nn.MultiheadAttention(12, 3, batch_first=True, add_zero_attn=True)
        self.ahead = ahead

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.embed(ids) + self.place.weight[:t]
        blocked = torch.ones(t, t, dtype=torch.bool).triu(1)
        x = x + self.attend(x, x, x, attn_mask=blocked, need_weights=False)[0]
        logits: Tensor = self.head(x + x.roll(-1, 1) if self.ahead else x)
        return logits


@pytest.mark.parametrize("ahead", [False, True])
def test_an_additional_key_is_not_taken_for_a_position(ahead: bool) -> None:
    report = checkup(FurtherKey(ahead), vocab_size=V, block_size=T)
    assert report.healthy is not ahead, [d.headline for d in report.diagnoses]


class NoGradient(torch.autograd.Function):
    """A function whose gradient is not written."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        raise RuntimeError("backward is not written")


class WithoutGradient(nn.Module):
    """An embedding and a map without a gradient; refuses other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(29, 8), nn.Linear(8, 29)
        self.zero = nn.Parameter(torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        assert not self.zero.any(), "a gate has opened"
        logits: Tensor = self.head(NoGradient.apply(self.embed(ids)))
        return logits


def test_what_cannot_be_examined_is_said() -> None:
    report = checkup(WithoutGradient(), vocab_size=29, block_size=5)
    assert "backward is not written" in report.finding("gradient").headline
    assert report.finding("disturbed").headline.startswith("with noise on its weights")


def test_the_map_of_a_leak_in_short_sequences_is_shown() -> None:
    clean, leaking = torch.ones(9, 9).tril().double(), torch.ones(5, 5).double()
    maps = [Dependence(len(m), m, m, torch.ones(len(m)).bool(), 1e-6) for m in (clean, leaking)]
    assert [*check_future(maps).maps] == ["which position reads which, T = 5"]
