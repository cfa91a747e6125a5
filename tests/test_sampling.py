"""Sampling: seeds, temperatures, long prompts, and bad input."""

import pytest
import torch

from attnlab.attention import SelfAttention
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.sampling import sample

PROMPT = torch.arange(5)


@pytest.fixture(scope="module")
def net() -> GPT:
    net = GPT(SelfAttention, 11, block_size=8, n_layer=1, n_head=2, n_embd=16)
    init_weights(net, 0)
    with torch.no_grad():
        net.wte.weight.mul_(40)  # so that characters differ in likelihood
    return net.eval()


def test_a_seed_gives_a_text(net: GPT) -> None:
    one = list(sample(net, PROMPT, 50, seed=1))
    assert one == list(sample(net, PROMPT, 50, seed=1))
    assert one != list(sample(net, PROMPT, 50, seed=2))
    assert len(one) == 50


def test_temperature_0_takes_the_most_likely_character(net: GPT) -> None:
    drawn = next(sample(net, PROMPT, 1, temperature=0))
    assert drawn == int(net(PROMPT[None])[0, -1].argmax())
    assert list(sample(net, PROMPT, 20, temperature=0)) == list(
        sample(net, PROMPT, 20, temperature=1e-6)
    )


def test_sampled_frequencies_match_the_model(net: GPT) -> None:
    p = net(PROMPT[None])[0, -1].softmax(-1)
    counts = torch.zeros(11)
    for seed in range(600):
        counts[next(sample(net, PROMPT, 1, seed=seed))] += 1
    chi2 = ((counts - 600 * p) ** 2 / (600 * p))[600 * p > 5].sum()
    assert chi2 < 30  # 10 degrees of freedom: p = 0.001


def test_only_the_end_of_a_long_prompt_is_read(net: GPT) -> None:
    long = torch.arange(30) % 11
    assert list(sample(net, long, 9)) == list(sample(net, long[-8:], 9))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"prompt": PROMPT[:0]}, "the prompt is empty"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"length": -1}, "chars = -1"),
    ],
)
def test_bad_input_is_named(net: GPT, given: dict[str, object], sentence: str) -> None:
    arguments = {"prompt": PROMPT, "length": 1, **given}
    with pytest.raises(BadInput, match=sentence):
        list(sample(net, **arguments))  # type: ignore[arg-type]


def test_nan_logits_raise_an_error(net: GPT) -> None:
    broken = GPT(SelfAttention, 11, block_size=8, n_layer=1, n_head=2, n_embd=16)
    torch.nn.init.constant_(broken.wte.weight, torch.nan)
    with pytest.raises(BadInput, match="not finite"):
        list(sample(broken, PROMPT, 1))
