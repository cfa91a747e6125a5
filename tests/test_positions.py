"""What the model adds to its embeddings for positions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attnlab.attention.ops import rotate, sinusoids
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.training.config import read_config
from tests.conftest import settings

T, C, V = 11, 16, 7
POSITIONS = ["learned", "sinusoidal", "none"]
CPU = torch.device("cpu")


def net_of(positions: Any) -> GPT:
    sizes = {"block_size": T, "n_layer": 1, "n_head": 2, "n_embd": C}
    net = GPT(lambda config: nn.Identity(), V, positions=positions, **sizes)
    init_weights(net, seed=2)
    return net


def encoding(base: float = 10_000.0, shift: int = 0, wide: int = C) -> Any:
    """PE(pos, 2i) = sin(pos / 10000^(2i / C)), PE(pos, 2i + 1) = cos of it (Vaswani et al. 2017,
    sec. 3.5), one number at a time."""
    table = np.zeros((T, C))
    for position, channel in np.ndindex(T, C):
        i = channel // 2
        angle = position / base ** (2 * i / wide)
        table[position, channel] = (math.sin, math.cos)[(channel + shift) % 2](angle)
    return table


def test_sinusoids_are_those_of_the_paper() -> None:
    ours = sinusoids(T, C, CPU).numpy()
    np.testing.assert_allclose(ours, encoding(), atol=1e-6)
    for planted in ({"base": 9_000.0}, {"shift": 1}, {"wide": C + 1}):
        assert np.abs(ours - encoding(**planted)).max() > 1e-3


@pytest.mark.parametrize("k", [1, 4])
def test_a_sinusoid_k_positions_on_is_a_linear_function_of_it(k: int) -> None:
    """The same matrix for every position: Vaswani et al. 2017, section 3.5."""
    for table, is_linear in [(sinusoids(60, C, CPU), True), (torch.randn(60, C), False)]:
        before, after = table[:-k].double(), table[k:].double()
        matrix = torch.linalg.lstsq(before, after).solution  # (C, C), of 60 - k rows
        assert ((before @ matrix - after).abs().max() < 1e-4) == is_linear


def test_sinusoids_are_the_pairs_of_position_0_turned_as_rotary_positions_turn() -> None:
    cosines_first = sinusoids(T, C, CPU).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    torch.testing.assert_close(rotate(cosines_first[:1].expand(T, C)), cosines_first)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_embedding_is_the_symbol_and_its_position(positions: str) -> None:
    net = net_of(positions)
    ids = torch.randint(V, (3, T))
    added = {
        "learned": lambda: net.wpe.weight,  # type: ignore[union-attr]
        "sinusoidal": lambda: torch.tensor(0.02 * encoding(), dtype=torch.float32),
        "none": lambda: torch.zeros(T, C),
    }[positions]()
    torch.testing.assert_close(net.embed(ids), net.wte(ids) + added, rtol=0, atol=1e-7)


def test_all_positions_start_with_the_same_weights() -> None:
    learned = dict(net_of("learned").named_parameters())
    for positions in ("sinusoidal", "none"):
        weights = dict(net_of(positions).named_parameters())
        assert learned.keys() - weights.keys() == {"wpe.weight"}
        assert all(torch.equal(learned[name], weight) for name, weight in weights.items())


SOME = "+attn@attn.layers.2=rotary +attn@attn.layers.3=sdpa attn@attn.layers.1=rotary"


@pytest.mark.parametrize(
    ("words", "rotated"),
    [
        ("attn=rotary", [True] * 4),
        ("attn=hybrid attn@attn.layers.0=rotary", [True, False] * 2),
        (f"attn=hybrid attn@attn.layers.0=rotary {SOME}", [True, True, True, False]),
        ("attn=sdpa", [False] * 4),
    ],
)
def test_rotary_positions_are_in_all_layers_or_in_some(words: str, rotated: list[bool]) -> None:
    config = read_config(settings(*words.split(), "model.n_layer=4", "model.positions=none"))
    net: Any = config.model(V)
    assert net.wpe is None
    assert [block.attn.rotary is not None for block in net.blocks] == rotated
