"""A proof that a predictor reads ahead, by betting against the source of its text.

Let q_t be a predictor's probabilities and p the source's own, both of x_t given the past. If q_t
depends on the past only and sums to 1 at most, M_n = prod_t q_t(x_t) / p(x_t | x_<t) is a
nonnegative supermartingale that starts at 1, so by Ville's (1939) inequality

    P(M_n >= 1/alpha at any n) <= alpha.

Once M passes 1/alpha, "it reads only the past" is rejected with error probability alpha, at
whatever moment one looks. The predictor may be trained meanwhile, if every text is scored before
it is trained on.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from attnlab.data.plays import Plays
from attnlab.rng import generator

Scored = tuple[Tensor, Tensor]  # ids (B, T + 1); ln p of ids[:, 1:] given all before, (B, T)


@dataclass
class Bet:
    """The logarithm of M, in nats: now, at its highest, and after every batch.

    One coin is laid aside for each of `openings` batches, and each is staked when its batch
    comes, so that what an untrained predictor loses at first is no burden later. A mixture of
    supermartingales is one; it costs ln(openings) nats of evidence.
    """

    openings: int
    log: float = -math.inf
    highest: float = 0.0
    history: list[float] = field(default_factory=list)

    def update(self, log_q: Tensor, log_p: Tensor) -> None:
        """Take a batch in order: ln of the predictor's and of the source's probability.

        Raises:
            ValueError: one is NaN, or the source calls impossible what happened, or there are
                more batches than openings.
        """
        if len(self.history) == self.openings:
            raise ValueError(f"all {self.openings} coins are staked")
        stake = float(np.logaddexp(self.log, -math.log(self.openings)))
        path = stake + (log_q.double() - log_p.double()).flatten().cumsum(0)
        if path.isnan().any() or log_p.isinf().any():
            raise ValueError("a probability is NaN, or the source gives 0 to what it wrote")
        self.highest = max(self.highest, float(path.max()))
        self.log = float(path[-1])
        self.history.append(self.log)


def uniform_text(vocab_size: int, T: int, seed: int, batch_size: int = 16) -> Iterable[Scored]:
    """Endless fresh batches of independent uniform tokens: ln p = -ln V."""
    step = 0
    while True:
        stream = generator(seed, "uniform", step)
        ids = torch.randint(vocab_size, (batch_size, T + 1), generator=stream)
        yield ids, torch.full((batch_size, T), -math.log(vocab_size))
        step += 1


def plays_text(source: Plays, T: int, seed: int, batch_size: int = 16) -> Iterable[Scored]:
    """Endless fresh batches of `plays`, with the exact ln p given the whole past of the text.

    The rows of a batch are consecutive windows of one text. A window's predictor sees less of
    the past than the source does, which only lowers M for honest ones.
    """
    index = {symbol: i for i, symbol in enumerate(source.alphabet)}
    step = 0
    while True:
        # A million texts a seed; each is drawn from a seed of its own and used once.
        text, log_p = source.generate(seed * 1_000_000 + step, batch_size * T + 1)
        ids = torch.tensor([index[symbol] for symbol in text])
        windows = ids.unfold(0, T + 1, T)  # (B, T + 1), each overlaps the next by one symbol
        yield windows, torch.from_numpy(log_p[1:]).view(batch_size, T)
        step += 1


def train_and_bet(
    net: nn.Module, text: Iterable[Scored], *, steps: int, lr: float, alpha: float = 1e-9
) -> Bet:
    """Train on fresh text, and bet on each batch before it is trained on.

    Stops once M has passed 1/alpha, which Ville's inequality allows.

    Args:
        net: ids (B, T) -> logits (B, T, V); changed in place.
        text: batches that are never repeated.
        steps: the most batches to look at.
        lr: of AdamW.
        alpha: error probability of a proof.
    """
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, betas=(0.9, 0.99))
    bet = Bet(openings=steps)
    for _, (ids, log_p) in zip(range(steps), text, strict=False):
        log_q = net(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]  # (B, T)
        if not log_q.isfinite().all():
            break  # training diverged: no more evidence, and none is lost
        bet.update(log_q.detach(), log_p)
        if bet.highest >= math.log(1 / alpha):
            break
        optimizer.zero_grad()
        (-log_q.mean()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return bet
