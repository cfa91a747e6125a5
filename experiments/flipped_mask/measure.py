"""A proof that a mask shows the future, and where in a window its loss is low."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention import SelfAttention, bidirectional, causal, flipped, peek_one
from attnlab.data.corpus import tinyshakespeare
from attnlab.data.plays import Plays
from attnlab.init import init_weights
from attnlab.model import GPT
from experiments.betting import ScoredText, plays_text, train_and_bet, uniform_text

MASKS = {
    "causal": causal,
    "flipped": flipped,
    "bidirectional": bidirectional,
    "peek_one": peek_one,
}
LEAKY = ("flipped", "bidirectional", "peek_one")


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


def _net(may_attend: Callable[[Tensor, Tensor], Tensor], V: int, seed: int) -> GPT:
    attn = partial(SelfAttention, may_attend=may_attend)
    net = GPT(attn, V, block_size=64, n_layer=2, n_head=4, n_embd=64, bias=False)
    init_weights(net, seed, "gpt2")
    return net


@torch.inference_mode()
def future_dependence(folder: Path) -> Mapping[str, Any]:
    """How much past logits change when one future token of TinyShakespeare is replaced.

    A causal model computes them from the same numbers by the same operations, so the change is
    exactly 0. Any other value proves that the model reads ahead.
    """
    from attnlab.trained.checkpoints import load_model

    net, alphabet = load_model(folder)
    T = net.block_size
    ids = tinyshakespeare().val[: 8 * T].view(8, T)
    largest = 0.0
    for t in (1, T // 2, T - 1):
        changed = ids.clone()
        changed[:, t] = (changed[:, t] + 1) % len(alphabet)
        past = (net(changed) - net(ids))[:, :t]
        largest = max(largest, float(past.abs().max()))
    return {"change": largest, "leaks": float(largest > 0)}


@torch.inference_mode()
def by_position(folder: Path) -> Mapping[str, Any]:
    """Loss at each position of the window; the last one sees only itself with a flipped mask."""
    from attnlab.trained.checkpoints import load_model

    net, _ = load_model(folder)
    batches = tinyshakespeare().held_out("val", net.block_size)[:16]  # 1,024 windows
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    losses = F.cross_entropy(net(x).transpose(1, 2), y, reduction="none").mean(0)  # (T,)
    return {
        "by position": [round(loss, 4) for loss in losses.tolist()],
        "last position": float(losses[-1]),
    }
