"""A user's test file: it runs where only torch and pytest are installed, beside no other file."""

import pytest
import torch
from torch import Tensor, nn

from attncheck import CheckFailed, assert_causal, checks_for


class Mean(nn.Module):
    """A mean of the tokens up to position t, and of `later` more."""

    vocab_size, block_size = 11, 13

    def __init__(self, later: int = 0) -> None:
        super().__init__()
        self.later, self.embed, self.head = later, nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        mask = torch.ones(ids.shape[1], ids.shape[1]).tril(self.later).to(self.head.weight)
        return self.head(mask / mask.sum(-1, keepdim=True) @ self.embed(ids))


@pytest.mark.parametrize("check", checks_for(Mean()))
def test_healthy(check):
    check()


def test_leak():
    with pytest.raises(CheckFailed, match=r"up to t \+ 1"):
        assert_causal(Mean(1))
