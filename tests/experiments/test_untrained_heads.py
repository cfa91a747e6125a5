import pytest
import torch

from experiments.untrained_heads import measure


def test_a_planted_relationship_is_found():
    found = []
    for seed in range(4):
        net = measure.untrained(seed)
        measure.plant_relationship(net)
        found.append(measure.peaks_of_query(net, on_others=True) == measure.ANSWER)
    assert torch.stack(found).float().mean() > 0.8


def test_cosines_of_equal_and_of_orthogonal_heads():
    row = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    assert measure.mean_cosine(row.expand(2, 3, 4)) == pytest.approx(1.0)
    assert measure.mean_cosine(torch.eye(2)[:, None]) == 0.0


def test_the_same_seed_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "MODELS", 2)
    assert measure.many_models(5) == measure.many_models(5)
