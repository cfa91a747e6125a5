"""What a model writes: drawn from its own probabilities, repeatably, with at most its context."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from attnlab import GPT, SelfAttention, init_weights
from attnlab.errors import BadInput
from attnlab.sampling import sample


@pytest.fixture
def net() -> GPT:
    net = GPT(SelfAttention, 11, n_layer=2, n_head=2, n_embd=16, block_size=8)
    init_weights(net, seed=0)
    with torch.no_grad():
        net.wte.weight.mul_(20)  # clear preferences
    return net.eval()


class Fixed(nn.Module):
    """The same logits everywhere."""

    block_size = 4

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits.expand(*ids.shape, -1)


def test_temperature_0_takes_the_likeliest_symbol_of_the_last_context(net: GPT) -> None:
    ids = [1, 2, 3]
    for _ in range(20):
        ids.append(int(net(torch.tensor([ids[-8:]]))[0, -1].argmax()))
    assert sample(net, torch.tensor([1, 2, 3]), 20, temperature=0) == ids[3:]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_symbols_are_drawn_from_the_probabilities(temperature: float) -> None:
    logits = (0.0, 1.0, 2.0, -1.0)
    drawn = sample(Fixed(*logits), torch.tensor([0]), 4000, temperature=temperature)  # type: ignore[arg-type]
    weights = [math.exp(x / temperature) for x in logits]
    for symbol, count in Counter(drawn).items():
        p = weights[symbol] / sum(weights)
        assert abs(count - 4000 * p) < 5 * math.sqrt(4000 * p * (1 - p))


def test_a_seed_repeats_its_text_whatever_was_drawn_before(net: GPT) -> None:
    prompt = torch.arange(10)
    texts = [sample(net, prompt, 30, seed=seed) for seed in (0, 1)]
    torch.rand(5)
    assert sample(net, prompt, 30) == texts[0] != texts[1]
    assert sample(net, prompt[-8:], 30) == texts[0]  # it sees no more than its context


@pytest.mark.parametrize(
    ("prompt", "settings", "words"),
    [
        ([], {}, "empty"),
        ([0], {"length": -1}, "at least 0"),
        ([0], {"temperature": -0.5}, "temperature"),
        ([0], {"temperature": math.nan}, "temperature"),
        ([0], {"logits": (math.nan, 0.0)}, "not finite"),
        ([0], {"logits": (0.0, math.inf)}, "not finite"),
    ],
)
def test_what_cannot_be_drawn(prompt: list[int], settings: dict[str, float], words: str) -> None:
    given = {"length": 3, "temperature": 1.0, "logits": (0.0, 0.0)} | settings
    model, length = Fixed(*given.pop("logits")), given.pop("length")  # type: ignore[misc]
    with pytest.raises(BadInput, match=words):
        sample(model, torch.tensor(prompt, dtype=torch.long), length, **given)  # type: ignore[arg-type]


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = (1000.0, 999.0, -1000.0)
    assert sample(Fixed(*logits), torch.tensor([0]), 5, temperature=1e-6) == [0] * 5  # type: ignore[arg-type]
