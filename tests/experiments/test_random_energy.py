"""The random energy model against draws."""

import math

import pytest
import torch

from experiments.unscaled.random_energy import random_energy


@pytest.mark.parametrize("std", [0.0, 0.5, 2.0, 5.0])
def test_the_random_energy_model_is_the_mean_of_draws(std: float) -> None:
    stream = torch.Generator().manual_seed(3)
    n = torch.tensor([64, 4, 64])
    entropy, trace = random_energy(std, n)
    for place, keys in enumerate(n.tolist()):
        p = (std * torch.randn(20_000, keys, generator=stream).double()).softmax(-1)
        of_rows = torch.special.entr(p).sum(-1), 1 - p.square().sum(-1)
        for ours, draws in zip((entropy, trace), of_rows, strict=True):
            error = 5 * float(draws.std()) / math.sqrt(len(draws)) + 1e-9
            assert abs(float(ours[place]) - float(draws.mean())) < error
    assert random_energy(math.nan, n)[0].isnan().all()
