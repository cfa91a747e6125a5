"""The proof by training: honest models hardly ever lose, leaking ones soon do."""

import math

import pytest
import torch

from attnlab.checkup import checkup
from attnlab.checkup.martingale import Martingale, prove_by_training
from attnlab.checkup.model_adapter import adapt
from tests.faults import in_gpt


def test_honest_models_cross_at_most_as_often_as_alpha() -> None:
    """2,000 streams against predictors that bet on what they have seen, at three levels."""
    streams, n, V = 2000, 400, 5
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(V, (streams, n), generator=generator)
    seen = torch.nn.functional.one_hot(tokens, V).cumsum(1).roll(1, 1)
    seen[:, 0] = 0
    # Bold bets on the past: each symbol's frequency so far, much too much trusted.
    q = (seen.double() + 0.2).square()
    q = q / q.sum(-1, keepdim=True)
    log_q = q.gather(-1, tokens[..., None])[..., 0].log()
    for alpha in (0.2, 0.05, 0.01):
        crossed = 0
        for stream in log_q:
            bet = Martingale(V, alpha)
            bet.update(stream)
            crossed += bet.proven
        # Ville: at most alpha; 3 standard deviations of a binomial for the count itself.
        assert crossed / streams <= alpha + 3 * math.sqrt(alpha / streams)


def test_the_path_counts_not_only_its_end() -> None:
    bet = Martingale(2, alpha=0.25)
    bet.update(torch.tensor([1.0, 1.0, 1e-6]).log())
    assert bet.proven
    assert bet.log < 0


def test_impossible_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or 0"):
        Martingale(2).update(torch.tensor([float("nan")]))


@pytest.mark.parametrize("fault", ["flipped", "peek_one"])
def test_a_leak_is_proven(fault: str) -> None:
    subject = adapt(in_gpt.build(fault, 16, 2, 2), None, None)
    finding = prove_by_training(subject, torch.Generator().manual_seed(0), steps=300)
    assert finding.cause == "proof", finding.headline
    assert finding.numbers["log10 of the highest M"] >= 9


def test_an_honest_model_is_not_proven_anything() -> None:
    subject = adapt(in_gpt.build("healthy", 16, 1, 2), None, None)
    finding = prove_by_training(subject, torch.Generator().manual_seed(0), steps=60)
    assert finding.cause == ""
    assert finding.numbers["log10 of the highest M"] < 9


def test_the_proof_joins_the_diagnosis() -> None:
    report = checkup(in_gpt.build("flipped", 16, 1, 2), prove=True)
    assert report.causes == ("flipped_mask",)
    assert "proof" in report.diagnoses[0].detectors
