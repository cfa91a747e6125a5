"""Proofs by betting: leaking models are soon proven to leak, causal models hardly ever."""

import itertools
import math
from functools import partial

import pytest
import torch

from attnlab.attention import SelfAttention, bidirectional, causal, flipped, peek_one
from attnlab.data.plays import Plays
from attnlab.init import init_weights
from attnlab.model import GPT
from experiments.betting import Martingale, plays_text, train_and_bet, uniform_text

BOUND = math.log(1e9)


def test_causal_bets_exceed_the_bound_at_most_with_probability_alpha() -> None:
    """2,000 streams with predictors that bet on the frequencies of earlier tokens."""
    streams, n, V = 2000, 400, 5
    tokens = torch.randint(V, (streams, n), generator=torch.Generator().manual_seed(0))
    seen = torch.nn.functional.one_hot(tokens, V).cumsum(1).roll(1, 1)
    seen[:, 0] = 0
    q = (seen.double() + 0.2).square()  # overconfident
    log_q = (q / q.sum(-1, keepdim=True)).gather(-1, tokens[..., None])[..., 0].log()
    for alpha in (0.2, 0.05, 0.01):
        crossed = 0
        for stream in log_q:
            bet = Martingale(1, alpha)
            bet.update(stream, torch.full((n,), -math.log(V)))
            crossed += bet.proven
        # Ville: at most alpha; 3 standard deviations of a binomial for the count itself.
        assert 0 < crossed / streams <= alpha + 3 * math.sqrt(alpha / streams)


def test_a_leak_is_proven_at_any_time_not_only_at_the_end() -> None:
    bet = Martingale(1, alpha=0.25)
    bet.update(torch.tensor([1.0, 1.0, 1e-6]).log(), torch.full((3,), 0.5).log())
    assert bet.proven and bet.log < 0
    with pytest.raises(ValueError, match="announce"):
        bet.update(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="NaN"):
        Martingale(1).update(torch.tensor([math.nan]), torch.tensor([-1.0]))


@pytest.mark.parametrize(
    ("may_attend", "steps", "proven"),
    [(flipped, 300, True), (bidirectional, 300, True), (peek_one, 300, True), (causal, 60, False)],
)
def test_a_mask_that_shows_the_future_is_proven_to_leak(may_attend, steps, proven) -> None:
    attn = partial(SelfAttention, may_attend=may_attend)
    net = GPT(attn, 11, block_size=16, n_layer=1, n_head=2, n_embd=32)
    init_weights(net, 0)
    text = uniform_text(11, 16, seed=1)
    bet = train_and_bet(net, text, weights=list(net.parameters()), steps=steps, lr=1e-2)
    assert (bet.highest >= BOUND) == proven
    assert (len(bet.history) < steps) == proven  # training stops at the proof
    assert proven or bet.highest < 5


def test_plays_have_their_own_probabilities_and_betting_these_gains_nothing() -> None:
    source, bet = Plays(), Martingale(5)
    ids, log_p = next(iter(plays_text(source, 8, seed=2, batch_size=4)))
    text, logs = source.generate(2_000_000, 33)
    assert ids.shape == (4, 9) and ids[1, 0] == ids[0, -1]
    assert "".join(source.alphabet[i] for i in ids[0].tolist()) == text[:9]
    assert log_p.flatten().tolist() == pytest.approx(logs[1:].tolist())
    for _, log_p in itertools.islice(plays_text(source, 16, seed=3), 5):
        bet.update(log_p, log_p)
    assert (bet.highest, bet.log) == pytest.approx((0.0, 0.0), abs=1e-9)
