"""Proof by training: fresh uniform tokens cannot be predicted from the past.

If a model's probability q_t of each token depends on earlier tokens only, then M_n = prod q_t V is
a nonnegative supermartingale that starts at 1, and by Ville's inequality it ever exceeds 1/alpha
with probability alpha at most. So once it does, the model reads ahead (or its probabilities do not
sum to 1), whatever the mechanism and whatever was tried before. The weights may be trained
meanwhile, as long as every sequence is scored before it is trained on.
"""

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnlab.checkup.adam import Adam
from attnlab.checkup.findings import Finding, Status
from attnlab.checkup.model_adapter import REFUSALS, Subject
from attnlab.checkup.preserve_state import working_copy
from attnlab.checkup.stress import open_weights

ALPHA = 1e-9


@dataclass
class Martingale:
    """The running logarithm of M_n, and its highest value so far, in nats.

    Args:
        vocab_size: V, tokens are uniform over V symbols.
        alpha: the probability of a false proof.
    """

    vocab_size: int
    alpha: float = ALPHA
    log: float = 0.0
    highest: float = 0.0
    history: list[float] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        """Whether M_n ever reached 1/alpha."""
        return self.highest >= math.log(1 / self.alpha)

    def update(self, log_q: Tensor) -> None:
        """Take the natural logarithms of the probabilities of further tokens, in order.

        Ville's inequality holds for the highest of all partial products, so each one counts.
        """
        gains = log_q.double().flatten() + math.log(self.vocab_size)
        path = self.log + gains.cumsum(0)
        if not bool(path.isfinite().all()):
            raise ValueError("a probability is NaN or 0, which is no case for a martingale")
        self.highest = max(self.highest, float(path.max()))
        self.log = float(path[-1])
        self.history.append(self.log)


def prove_by_training(
    subject: Subject, generator: torch.Generator, *, steps: int = 400, seconds: float = 40.0
) -> Finding:
    """Train a copy on fresh uniform tokens, and bet on each before it is trained on."""
    if subject.module is None:
        return Finding("proof", Status.NOT_APPLICABLE, "only a torch module can be trained")
    model, note = working_copy(subject.module)
    if note:
        return Finding("proof", Status.NOT_APPLICABLE, note)
    student = subject.replaced(model.float())
    bet = Martingale(subject.vocab_size)
    adam = Adam(open_weights(model), lr=3e-3)
    begin = time.perf_counter()
    step = 0
    try:
        while step < steps and not bet.proven and time.perf_counter() - begin < seconds:
            step += 1
            _train_and_bet(student, bet, adam, generator)
    except REFUSALS as error:
        return Finding("proof", Status.NOT_APPLICABLE, f"the training stopped: {error}")
    return _verdict(bet, step)


def _train_and_bet(
    student: Subject, bet: Martingale, adam: Adam, generator: torch.Generator
) -> None:
    ids = student.tokens(generator, min(16, student.rows), student.block_size)
    with torch.enable_grad():
        logits = student.raw(ids)[:, :-1, : student.vocab_size].float()
        log_q = logits.log_softmax(-1)  # over the V symbols only, so that it is a probability
        picked = log_q.gather(-1, ids[:, 1:, None].to(logits.device))[..., 0]  # (B, T - 1)
        bet.update(picked.detach().cpu())
        (-picked.mean()).backward()
    adam.step()


def _verdict(bet: Martingale, step: int) -> Finding:
    digits = bet.highest / math.log(10)
    numbers = {"log10 of the highest M": digits, "steps": float(step), "alpha": bet.alpha}
    if bet.proven:
        return Finding(
            "proof",
            Status.FAULT,
            f"the model predicts fresh uniform tokens: odds of 10^{digits:.1f} against every "
            f"model that only reads the past, after {step} steps of training",
            "proof",
            numbers,
        )
    headline = f"no proof of a leak in {step} steps (the odds never passed 10^{digits:.1f})"
    return Finding("proof", Status.OK, headline, "", numbers)
