"""The task of two look-ups: what its answers name, and what it refuses."""

import pytest
import torch

from attnlab.data.contract import IGNORED
from attnlab.errors import BadInput
from experiments.head_relations.two_places import two_places


@pytest.mark.parametrize("symbols", [2, 8, 30])
def test_each_answer_names_the_symbols_one_and_four_positions_back(symbols: int) -> None:
    x, y = two_places(12, symbols).windows("val", 12, 20)
    assert (y[:, :4] == IGNORED).all()
    for t in range(4, 12):
        near, far = (y[:, t] - symbols) // symbols, (y[:, t] - symbols) % symbols
        assert torch.equal(near, x[:, t - 1])
        assert torch.equal(far, x[:, t - 4])
    assert int(x.max()) < symbols <= int(y[:, 4:].min())


@pytest.mark.parametrize(("length", "symbols"), [(4, 8), (12, 1), (12, 31)])
def test_numbers_out_of_range_are_refused(length: int, symbols: int) -> None:
    with pytest.raises(BadInput):
        two_places(length, symbols)
