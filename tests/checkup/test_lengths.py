"""Leaks at lengths beyond the maps, and what a report says it did not look at."""

import time
import warnings

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import CheckupFailed, assert_causal, checkup
from attnlab.checkup.findings import passed
from attnlab.checkup.lengths import check_lengths
from attnlab.checkup.model_adapter import adapt
from attnlab.model import Block
from tests.faults import in_gpt
from tests.faults.beside import Beside
from tests.marks import sampled

V = 29


class Blocks(nn.Module):
    """A causal average, and the mean of every complete block of b positions times a gate."""

    def __init__(self, b: int, T: int | None, gate: float, C: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vocab_size, self.b, self.block_size = V, b, T
        self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        n = len(ids[0]) // self.b * self.b
        means = x[:, :n].unflatten(1, (-1, self.b)).mean(2)  # (B, n / b, C)
        read = nn.functional.pad(means.repeat_interleave(self.b, 1), (0, 0, 0, len(ids[0]) - n))
        y = x.cumsum(1) / torch.arange(1, len(ids[0]) + 1)[:, None] + self.gate * read
        logits: Tensor = self.head(x + y)
        return logits


LEAKS = [
    (b, T, gate)
    for b, T in ((64, 256), (300, 512), (512, 1024), (1000, 2048))
    for gate in (1.0, 0.0)
]


@pytest.mark.parametrize(("b", "T", "gate"), sampled(LEAKS, lambda leak: leak[0] in (300, 1000)))
def test_leaks_in_long_blocks_are_found_without_an_argument(b: int, T: int, gate: float) -> None:
    begin = time.process_time()
    with pytest.raises(CheckupFailed, match=r"read|depend on tokens from") as failed:
        assert_causal(Blocks(b, T, gate))
    assert failed.value.report.causes[0] in ("late_leak", "block_leak", "outside", "short_leak")
    assert time.process_time() - begin < 30


@pytest.mark.parametrize("T", [300, 1024])
def test_a_causal_model_is_looked_at_up_to_its_length(T: int) -> None:
    report = checkup(Blocks(10**6, T, 1.0))
    assert report.finding("lengths").status.value == "ok"
    assert report.finding("lengths").numbers["positions"] == T
    assert report.unseen == ()


def test_a_model_without_a_length_is_said_not_to_be_looked_at_beyond() -> None:
    model = Blocks(300, None, 1.0)
    with pytest.raises(CheckupFailed, match="in sequences of"):
        assert_causal(model)
    healthy = Blocks(10**6, None, 1.0)
    with pytest.warns(UserWarning, match="not looked at: more than 4,096 positions"):
        assert_causal(healthy)
    with pytest.raises(CheckupFailed, match="declares no length"):
        assert_causal(healthy, complete=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_causal(healthy, block_size=40, complete=True)
    assert "Not looked at: more than" in checkup(healthy).to_text()


class Refuses(Blocks):
    """A causal model that declares 1,000 positions and refuses more than 400."""

    def __init__(self) -> None:
        super().__init__(10**6, 1000, 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        if len(ids[0]) > 400:
            raise RuntimeError("too long")
        return super().forward(ids)


def test_a_length_that_is_refused_is_not_passed_over() -> None:
    with pytest.raises(CheckupFailed, match="more than 256 of 1,000 positions"):
        assert_causal(Refuses(), complete=True)


def test_no_time_means_no_further_position() -> None:
    adapter = adapt(Blocks(10**6, 1024, 1.0), None, None)
    found = check_lengths(adapter, None, 1e-9, at_random=16)
    assert found.numbers["positions"] == 256
    slow = check_lengths(adapter, None, 100.0, at_random=16)
    assert slow == passed("lengths", slow.headline, {"positions": 1024.0, "declared": 1024.0})
    assert "cut at 39 positions" in slow.headline


class BlockMean(nn.Module):
    """The mean of every complete block of b positions, times a gate."""

    def __init__(self, b: int, gate: float) -> None:
        super().__init__()
        self.b, self.gate = b, nn.Parameter(torch.tensor(gate))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1] // self.b * self.b
        means = x[:, :n].unflatten(1, (-1, self.b)).mean(2).repeat_interleave(self.b, 1)
        read: Tensor = nn.functional.pad(means, (0, 0, 0, x.shape[1] - n))
        return self.gate * read


@pytest.mark.long
@pytest.mark.parametrize(("b", "T", "gate"), LEAKS)
def test_leaks_in_models_of_a_million_weights_take_30_seconds(b: int, T: int, gate: float) -> None:
    net = in_gpt.build("healthy", T, 5, 16)  # 128 wide
    block = net.blocks[2]
    assert isinstance(block, Block)
    block.mlp = Beside(block.mlp, BlockMean(b, gate))  # type: ignore[assignment]
    assert 0.9e6 < sum(p.numel() for p in net.parameters()) < 1.3e6
    begin = time.process_time()
    with pytest.raises(CheckupFailed):
        assert_causal(net)
    assert time.process_time() - begin < 30


@pytest.mark.long
@pytest.mark.parametrize("seconds", [5, 20])
def test_a_time_budget_is_held(seconds: float) -> None:
    begin = time.process_time()
    report = checkup(Blocks(10**6, 2048, 1.0, C=256), seconds=seconds)
    assert report.healthy
    assert time.process_time() - begin < 1.3 * seconds


class Short(Blocks):
    """A model of 150 positions, which it does not declare."""

    def forward(self, ids: Tensor) -> Tensor:
        if len(ids[0]) > 150:
            raise RuntimeError("too long")
        return super().forward(ids)


def test_lengths_between_the_maps_and_their_usual_limit_are_looked_at() -> None:
    adapter = adapt(Short(100, None, 1.0))
    assert adapter.block_size == 64
    assert check_lengths(adapter, None, 100.0, at_random=16).cause == "late_leak"
