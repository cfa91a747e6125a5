"""Prove that a predictor reads ahead, by betting on text whose probabilities are known."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnlab.rng import generator

if TYPE_CHECKING:
    from attnlab.data.plays import Plays

ScoredText = tuple[Tensor, Tensor]  # ids (B, T + 1); ln p of ids[:, 1:] given the past, (B, T)


@dataclass
class Martingale:
    """The logarithm of M, in nats: now, at its highest, and after every batch.

    Let q_t be the predictor's probability of token x_t and p_t the exact one given the past. If
    q_t depends on earlier tokens only, M_n = prod_t q_t(x_t) / p_t(x_t) is a nonnegative
    supermartingale that starts at 1, so by Ville's inequality (Ville 1939)

        P(M_n >= 1/alpha for any n) <= alpha.

    Once M passes 1/alpha, the predictor reads ahead (or its probabilities do not sum to 1), with
    error probability alpha, whatever the mechanism and whenever you look. The predictor may be
    trained meanwhile, as long as every text is scored before it is trained on.

    The stake is divided evenly over the batches: each batch adds its share, so that what an
    untrained predictor loses at first does not burden later bets. A mixture of supermartingales is
    a supermartingale; it costs ln(batches) nats of evidence.
    """

    batches: int  # the most that `update` will be called with
    alpha: float = 1e-9  # the error probability of a proof
    log: float = -math.inf
    highest: float = 0.0
    history: list[float] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        """Whether M has ever reached 1/alpha."""
        return self.highest >= math.log(1 / self.alpha)

    def update(self, log_q: Tensor, log_p: Tensor) -> None:
        """Add a batch in order. Every partial product counts toward `highest`.

        Args:
            log_q, log_p: natural logarithms of the predictor's and of the exact probabilities, of
                the same shape.

        Raises:
            ValueError: a probability is NaN, p is 0, or there are more batches than announced.
        """
        if len(self.history) == self.batches:
            raise ValueError(f"all {self.batches} batches have been used; announce more")
        share = torch.tensor([self.log, -math.log(self.batches)], dtype=torch.float64)
        stake = float(share.logsumexp(0))
        path = stake + (log_q.double() - log_p.double()).flatten().cumsum(0)
        if path.isnan().any() or log_p.isinf().any():
            raise ValueError("a probability is NaN, or p is 0 for a token that occurred")
        self.highest = max(self.highest, float(path.max()))
        self.log = float(path[-1])
        self.history.append(self.log)


def uniform_text(vocab_size: int, T: int, seed: int, batch_size: int = 16) -> Iterator[ScoredText]:
    """Endless new batches of independent uniform tokens: ln p = -ln V."""
    for step in count():
        stream = generator(seed, "uniform", step)
        ids = torch.randint(vocab_size, (batch_size, T + 1), generator=stream)
        yield ids, torch.full((batch_size, T), -math.log(vocab_size))


def plays_text(source: "Plays", T: int, seed: int, batch_size: int = 16) -> Iterator[ScoredText]:
    """Endless new batches of `plays`, with the exact ln p given the whole past of the text.

    The rows of a batch are consecutive windows of one text. The predictor of a window sees less of
    the past than the source does, which only lowers M for causal predictors.
    """
    index = {symbol: i for i, symbol in enumerate(source.alphabet)}
    for step in count():
        # A million texts per seed, each drawn from its own seed and used once.
        text, log_p = source.generate(seed * 1_000_000 + step, batch_size * T + 1)
        ids = torch.tensor([index[symbol] for symbol in text])
        windows = ids.unfold(0, T + 1, T)  # (B, T + 1), each overlaps the next by one symbol
        yield windows, torch.as_tensor(log_p[1:]).view(batch_size, T)


class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1) with the gradient clipped to a norm of 1.

    A few lines, so that the bits of the committed rows depend on nothing else.
    """

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        self.weights = weights
        self.lr = lr
        self.n = 0
        self.first = [torch.zeros_like(w) for w in weights]
        self.second = [torch.zeros_like(w) for w in weights]

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with the current gradients, and clear them."""
        self.n += 1
        a, b = 0.9, 0.99
        norms = [w.grad.norm() for w in self.weights if w.grad is not None]
        clip = min(1.0, 1.0 / max(float(torch.stack(norms).norm()), 1e-12)) if norms else 1.0
        for weight, m, v in zip(self.weights, self.first, self.second, strict=True):
            if weight.grad is None:
                continue
            m.lerp_(weight.grad * clip, 1 - a)
            v.lerp_((weight.grad * clip).square(), 1 - b)
            size = (v / (1 - b**self.n)).sqrt_().add_(1e-8)
            weight.addcdiv_(m, size, value=-self.lr / (1 - a**self.n))
            weight.grad = None


def train_and_bet(
    net: Callable[[Tensor], Tensor],
    text: Iterable[ScoredText],
    *,
    weights: list[nn.Parameter],
    steps: int,
    lr: float,
    seconds: float = math.inf,
) -> Martingale:
    """Train on new text, and bet on each batch before training on it.

    Stops once M has passed 1/alpha, which Ville's inequality allows, or when training diverges.

    Args:
        net: ids (B, T) -> logits (B, T, V).
        text: batches that never repeat.
        weights: what to train, in place.
        steps: the most batches to use.
        lr: learning rate of Adam.
        seconds: no batch is begun after that long.
    """
    begin = time.perf_counter()
    adam = Adam(weights, lr=lr)
    bet = Martingale(batches=steps)
    for ids, log_p in islice(text, steps):
        logits = net(ids[:, :-1])  # (B, T, V)
        targets = ids[:, 1:, None].to(logits.device)
        log_q = logits.log_softmax(-1).gather(-1, targets)[..., 0]  # (B, T)
        if not log_q.isfinite().all():
            break
        bet.update(log_q.detach().cpu(), log_p)
        if bet.proven or time.perf_counter() - begin >= seconds:
            break
        (-log_q.mean()).backward()
        adam.step()
    return bet
