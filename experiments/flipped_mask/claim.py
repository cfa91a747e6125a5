"""A mask that shows the future: a low loss, useless generated text, and a proof of the leak."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from attnlab.attention import SelfAttention, Variant, masks
from attnlab.checkup.martingale import ScoredText, plays_text, train_and_bet, uniform_text
from attnlab.claims import (
    Arm,
    AtLeast,
    AtMost,
    Bound,
    Claim,
    Exactly,
    Happens,
    Measured,
    Pilot,
    Proof,
    RunMetric,
    Trained,
    level,
)
from attnlab.data.batches import ValidationBatches
from attnlab.data.corpora import Corpus, tinyshakespeare
from attnlab.data.plays import Plays
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.rng import generator

MASKS = {
    "causal": masks.causal,
    "flipped": masks.flipped,
    "bidirectional": masks.bidirectional,
    "peek_one": masks.peek_one,
}
LEAKY = ("flipped", "bidirectional", "peek_one")
ORDER = 4  # of the n-gram model that judges generated text


def betting(seed: int) -> Mapping[str, Any]:
    """Bet on fresh text with every mask; the highest log of the martingale, in nats."""
    found: dict[str, Any] = {"history": {}}
    source = Plays()
    for name in MASKS:
        found[f"uniform {name}"] = _bet(name, 65, uniform_text(65, 64, seed), 100, seed, found)
    V = len(source.alphabet)
    for name in ("flipped", "causal"):
        found[f"plays {name}"] = _bet(name, V, plays_text(source, 64, seed), 200, seed, found)
    found["uniform weakest"] = min(found[f"uniform {name}"] for name in LEAKY)
    found["causal"] = max(found["uniform causal"], found["plays causal"])
    return found


def _bet(
    name: str, V: int, text: Iterable[ScoredText], steps: int, seed: int, found: dict[str, Any]
) -> float:
    net = _net(MASKS[name], V, seed)
    bet = train_and_bet(net, text, weights=list(net.parameters()), steps=steps, lr=3e-3)
    kind = "uniform" if V == 65 else "plays"
    found["history"][f"{kind} {name}"] = [round(log, 2) for log in bet.history]
    return bet.highest


def _net(may_attend: masks.Predicate, V: int, seed: int) -> GPT:
    attn = Variant(SelfAttention, {"may_attend": may_attend})
    net = GPT(attn, V, block_size=64, n_layer=2, n_head=4, n_embd=64, bias=False)
    init_weights(net, seed, "gpt2")
    return net


@torch.inference_mode()
def future_dependence(folder: Path) -> Mapping[str, Any]:
    """How much past logits change when one future token of TinyShakespeare is replaced.

    A causal model computes them from the same numbers by the same operations, so the change is
    exactly 0. Any other value proves that the model reads ahead.
    """
    from attnlab.training.checkpoints import load_model

    net, alphabet = load_model(folder)
    T = net.block_size
    ids = tinyshakespeare().val[: 8 * T].long().view(8, T)
    largest = 0.0
    for t in (1, T // 2, T - 1):
        changed = ids.clone()
        changed[:, t] = (changed[:, t] + 1) % len(alphabet)
        past = (net(changed) - net(ids))[:, :t]
        largest = max(largest, float(past.abs().max()))
    return {"change": largest, "leaks": float(largest > 0)}


@torch.inference_mode()
def by_position_and_by_text(folder: Path) -> Mapping[str, Any]:
    """Loss at each position of the window, and the n-gram loss of generated text."""
    from attnlab.training.checkpoints import load_model

    net, _ = load_model(folder)
    corpus = tinyshakespeare()
    x, y = (torch.cat(parts) for parts in zip(*_whole_windows(corpus, net), strict=True))
    losses = F.cross_entropy(net(x).transpose(1, 2), y, reduction="none").mean(0)  # (T,)
    start = corpus.val.long()[torch.arange(128) * 101][:, None]  # (128, 1)
    text, bigram = (_judge().nats(ids) for ids in (_generated(net, start), _bigram_text(start)))
    return {
        "by position": [round(loss, 4) for loss in losses.tolist()],
        "last position": float(losses[-1]),
        "first half": float(losses[: len(losses) // 2].mean()),
        "text": text,
        "bigram text": bigram,
        "over bigram": text - bigram,
    }


def _whole_windows(corpus: Corpus, net: GPT) -> list[tuple[Tensor, Tensor]]:
    batches = ValidationBatches(corpus.val, net.block_size)
    return [(x, y) for x, y in batches if x.shape[1] == net.block_size][:16]


def _generated(net: GPT, start: Tensor) -> Tensor:
    """Generate whole windows from single symbols; during generation there is no future to read."""
    stream, ids = generator(0, "generated"), start
    while ids.shape[1] < net.block_size:
        p = net(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=stream)], dim=1)
    return ids


def _bigram_text(start: Tensor, T: int = 64) -> Tensor:
    corpus = tinyshakespeare()
    V = len(corpus.alphabet)
    train = corpus.train.long()
    counts = torch.bincount(train[:-1] * V + train[1:], minlength=V * V)
    stream, ids = generator(0, "generated"), start
    while ids.shape[1] < T:
        p = counts.view(V, V)[ids[:, -1]].double() + 1e-9
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=stream)], dim=1)
    return ids


class NGrams:
    """An n-gram model; each order is smoothed by the one below (MacKay and Peto 1995)."""

    def __init__(self, ids: NDArray[np.int64], V: int, order: int, weight: float = 4.0) -> None:
        self.V, self.order, self.weight = V, order, weight
        self.tables = [
            np.unique(self._codes(ids, n), return_counts=True) for n in range(order + 2)
        ]

    def _codes(self, ids: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        windows = np.lib.stride_tricks.sliding_window_view(ids, n) if n else ids[:, None][:, :0]
        return np.asarray(windows @ (self.V ** np.arange(n)[::-1]), dtype=np.int64)

    def _count(self, codes: NDArray[np.int64], n: int) -> NDArray[np.float64]:
        known, counts = self.tables[n]
        place = np.searchsorted(known, codes).clip(max=len(known) - 1)
        return np.where(known[place] == codes, counts[place], 0).astype(float)

    def nats(self, texts: Tensor) -> float:
        """Mean nats per symbol of texts (B, T), without the first symbols of each."""
        rows = texts.numpy()
        grams = np.lib.stride_tricks.sliding_window_view(rows, self.order + 1, axis=1)
        flat = grams.reshape(-1, self.order + 1)
        p = np.full(len(flat), 1 / self.V)
        for n in range(1, self.order + 2):
            digits = self.V ** np.arange(n)[::-1]
            with_symbol = self._count(flat[:, -n:] @ digits, n)
            context = flat[:, -n:-1] @ digits[1:]
            seen = self._count(context, n - 1) if n > 1 else float(self.tables[1][1].sum())
            p = (with_symbol + self.weight * p) / (seen + self.weight)
        return float(-np.log(p).mean())


@lru_cache(maxsize=1)
def _judge() -> NGrams:
    corpus = tinyshakespeare()
    return NGrams(corpus.train.long().numpy(), len(corpus.alphabet), ORDER)


def worse(first: float, second: float) -> float:
    """The larger of two losses."""
    return max(first, second)


ARMS = {name: Arm(name, (f"attn={'sdpa' if name == 'causal' else name}",)) for name in MASKS}
TEXT = RunMetric(by_position_and_by_text, "over bigram")
LAST = RunMetric(by_position_and_by_text, "last position")
PAIR = (ARMS["flipped"], ARMS["causal"])
LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")
PAIR_LATE = tuple(Arm(f"{arm.name}, late", (*arm.overrides, *LATE)) for arm in PAIR)
TEXT_GIVEN = {"corpus": "tinyshakespeare"}  # the thresholds are floors of this corpus
HONEST = math.log(1e9)

CLAIM = Claim(
    says="A flipped mask leaks.",
    last_look=10,
    first_seed=300,
    headline="loss",
    order=2,
    predictions=(
        Measured(
            "proof_uniform",
            "Fresh uniform tokens: every mask that shows the future is proven to leak, p < 1e-9.",
            Proof(1e-9),
            where="fresh uniform tokens",
            # The pilot of `loss`, typed in the wrong place; see pilots.jsonl for this one.
            pilot=Pilot(0.0499, 0.00053),
            seconds=9,
            measure=betting,
            value="uniform weakest",
        ),
        Measured(
            "proof_plays",
            "Fresh plays: the flipped mask beats their exact probabilities, p < 1e-9.",
            Proof(1e-9),
            where="plays of known probability",
            pilot=Pilot(1.0),
            seconds=9,
            measure=betting,
            value="plays flipped",
        ),
        Trained(
            "proof_text",
            "TinyShakespeare: a replaced future token changes the logits of the past.",
            Happens("past logits change with a future token"),
            where="TinyShakespeare, by a replaced token",
            pilot=Pilot(1.0),
            arms=(ARMS["flipped"],),
            contrast=level,
            metric=RunMetric(future_dependence, "leaks"),
            given=TEXT_GIVEN,
        ),
        Trained(
            "loss",
            "TinyShakespeare: the flipped mask's loss is below 1.40, which no causal one was.",
            AtMost(1.40),
            where="TinyShakespeare, by its loss after 500 steps at one learning rate",
            pilot=Pilot(0.054, 0.01),
            arms=PAIR,
            contrast=level,
            given=TEXT_GIVEN,
        ),
        Measured(
            "control",
            "With the causal mask, the same bets do not reach the proof.",
            Bound(HONEST, unit="nats"),
            role="control",
            seconds=9,
            measure=betting,
            value="causal",
        ),
        Trained(
            "control_text",
            "With the causal mask, a replaced future token changes no bit of the past logits.",
            Exactly(0.0, unit="change of past logits"),
            role="control",
            arms=(ARMS["causal"],),
            contrast=level,
            metric=RunMetric(future_dependence, "change"),
            given=TEXT_GIVEN,
        ),
        Trained(
            "floor",
            "The loss comes within 0.15 nats of its own floor, 0.038.",
            AtMost(0.19),
            role="secondary",
            pilot=Pilot(0.0499, 0.00053),
            arms=(ARMS["flipped"],),
            contrast=level,
            given=TEXT_GIVEN,
        ),
        Trained(
            "last_position",
            "The last position, which sees only itself, is no better than a bigram: 2.2 nats.",
            AtLeast(2.2),
            role="secondary",
            pilot=Pilot(2.72, 0.021),
            arms=PAIR,
            contrast=level,
            metric=LAST,
            given=TEXT_GIVEN,
        ),
        Trained(
            "generation",
            "Generated text is no better than a bigram's, judged by a 5-gram model.",
            AtLeast(-0.1, unit="nats per character above the text of a bigram"),
            role="secondary",
            pilot=Pilot(4.49, 0.052),
            arms=PAIR,
            contrast=level,
            metric=TEXT,
            given=TEXT_GIVEN,
        ),
        Trained(
            "loss_late",
            "After 2,000 steps, the flipped mask's loss is below 0.19.",
            AtMost(0.19),
            role="secondary",
            budget="full",
            seeds=3,
            arms=PAIR_LATE,
            contrast=level,
            given=TEXT_GIVEN,
        ),
        Trained(
            "other_masks",
            "The loss without a mask, and with one that sees one character ahead.",
            AtMost(1.40),
            role="shown",
            seeds=3,
            arms=(ARMS["bidirectional"], ARMS["peek_one"]),
            contrast=worse,
            given=TEXT_GIVEN,
        ),
    ),
)
