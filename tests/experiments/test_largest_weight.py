import pytest
import torch

from attnlab.rng import generator
from experiments.largest_weight.measure import largest_weights


def test_without_scores_all_weights_are_equal():
    assert torch.allclose(largest_weights(8, 4, 0.0, seed=0), torch.tensor(1 / 8).double())


def test_huge_scores_leave_one_key():
    assert largest_weights(8, 512, 1e6, seed=0, rows=64).median() == 1


@pytest.mark.parametrize("scale", [1.0, 512**-0.5])
def test_agrees_with_explicit_queries_and_keys(scale: float):
    stream = generator(0, "explicit")
    q = torch.randn(2048, 1, 512, generator=stream)
    k = torch.randn(2048, 10, 512, generator=stream)
    explicit = (scale * (q @ k.mT)).softmax(-1).amax(-1).mean()
    assert float(explicit) == pytest.approx(
        float(largest_weights(10, 512, scale, seed=1).mean()), abs=0.01
    )
