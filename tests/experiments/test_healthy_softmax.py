import pytest

from experiments.healthy_softmax import measure


def test_the_untrained_model_is_measured_first():
    curves = measure.train(width=64, head_size=64, scale=None, lr=3e-3, seed=0, steps=10)
    assert len(curves["spread"]) == 2  # steps 0 and 10
    assert curves["spread"][0] == pytest.approx(1.0, abs=0.15)  # unit variance
    assert curves["saturated"][0] == 0
    assert curves["loss"][1] < curves["loss"][0]


def test_huge_scores_saturate_every_row():
    curves = measure.train(width=64, head_size=64, scale=1e6, lr=3e-3, seed=0, steps=0)
    assert curves["saturated"][0] > 0.95
