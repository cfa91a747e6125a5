"""The proof of a leak: what it is worth on honest models, and that it finds dishonest ones."""

import itertools
import math

import pytest
import torch
from torch import nn

from attnlab.attention import SelfAttention, Variant, masks
from attnlab.claims.martingale import Bet, plays_text, train_and_bet, uniform_text
from attnlab.data.plays import Plays
from attnlab.init import init_weights
from attnlab.model import GPT

BOUND = math.log(1e9)


def net(may_attend, V=11, seed=0):
    attn = Variant(SelfAttention, {"may_attend": may_attend})
    model = GPT(attn, V, block_size=16, n_layer=1, n_head=2, n_embd=32, bias=False)
    init_weights(model, seed)
    return model


@pytest.mark.parametrize("may_attend", [masks.flipped, masks.bidirectional, masks.peek_one])
def test_a_mask_that_shows_the_future_is_proven_to(may_attend):
    bet = train_and_bet(net(may_attend), uniform_text(11, 16, seed=1), steps=300, lr=1e-2)
    assert bet.highest >= BOUND
    assert len(bet.history) < 300  # it stops at the proof


def test_a_causal_model_is_never_proven_to():
    for seed in range(4):
        model = net(masks.causal, seed=seed)
        bet = train_and_bet(model, uniform_text(11, 16, seed), steps=60, lr=1e-2)
        assert bet.highest < 5


def test_plays_with_their_exact_probabilities_prove_it_too():
    source = Plays()
    model = net(masks.peek_one, V=len(source.alphabet))
    bet = train_and_bet(model, plays_text(source, 16, seed=0, batch_size=32), steps=500, lr=1e-2)
    assert bet.highest >= BOUND


def test_the_source_itself_gains_nothing_against_itself():
    source = Plays()
    bet = Bet(openings=5)
    for _, log_p in itertools.islice(plays_text(source, 16, seed=3), 5):
        bet.update(log_p, log_p)
    assert bet.highest == pytest.approx(0.0, abs=1e-9)
    assert bet.log == pytest.approx(0.0, abs=1e-9)  # all five coins staked: M = 1


def test_plays_are_windows_of_one_text_with_their_own_probabilities():
    source = Plays()
    ids, log_p = next(iter(plays_text(source, 8, seed=2, batch_size=4)))
    text, logs = source.generate(2_000_000, 33)
    assert ids.shape == (4, 9)
    assert "".join(source.alphabet[i] for i in ids[0].tolist()) == text[:9]
    assert ids[1, 0] == ids[0, -1]
    assert log_p.flatten().tolist() == pytest.approx(logs[1:].tolist())


def test_ville_holds_for_a_lucky_guesser():
    """Of many honest strategies at random, a share of alpha at most ever reaches 1/alpha."""
    rng = torch.Generator().manual_seed(0)
    reached, tries, alpha = 0, 400, 0.05
    for _ in range(tries):
        bet = Bet(openings=4)
        for _ in range(4):
            q = torch.distributions.Dirichlet(torch.full((3,), 0.3)).sample((50,))
            x = torch.randint(3, (50, 1), generator=rng)
            log_q = q.gather(1, x).clamp_min(1e-30).log()[:, 0]
            bet.update(log_q, torch.full((50,), -math.log(3)))
        reached += bet.highest >= math.log(1 / alpha)
    assert reached / tries <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / tries)


def test_nan_is_no_evidence():
    bet = Bet(openings=1)
    with pytest.raises(ValueError, match="NaN"):
        bet.update(torch.tensor([math.nan]), torch.tensor([-1.0]))


def test_a_predictor_that_diverges_ends_the_bet_without_a_proof():
    class Diverged(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def forward(self, ids):
            return torch.full((*ids.shape, 11), math.nan) * self.w

    bet = train_and_bet(Diverged(), uniform_text(11, 16, 0), steps=5, lr=1e-3)
    assert bet.highest == 0
    assert bet.history == []
