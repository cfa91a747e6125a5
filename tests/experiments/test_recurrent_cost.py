import math

import pytest
import torch

from experiments.recurrent_cost.measure import SIZES, C, crossover, layers


def test_every_layer_keeps_the_shape():
    x = torch.zeros(1, 16, C)
    for name, layer in layers(16).items():
        y = layer(x)
        assert (y if name == "attention" else y[0]).shape == x.shape


def test_the_crossover_is_interpolated_between_logarithms():
    ratios = [2.0, 2.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.5]  # 1 is halfway between the fourth and fifth
    assert crossover(ratios) == pytest.approx(math.sqrt(SIZES[3] * SIZES[4]) / C)
    assert crossover([2.0] * 8) == math.inf
