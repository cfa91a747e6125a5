"""Additive, dot, and scaled dot scores in one recurrent encoder-decoder: quality and speed."""

import math
import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aligner
import torch
import torch.nn.functional as F
from aligner import Aligner
from pair_batches import Batch, PairBatches, steps_an_epoch
from sentence_pairs import PAD, Pairs, pairs
from tavi import Pair
from torch import Tensor, nn
from translation_measures import alignments
from translator import Translator, init_weights, load_translator

from attnlab.claims import Arm, AtLeast, Claim, Measured, Pilot, RunMetric, Trained, Within
from attnlab.files import read_json

SIZES = (32, 64, 128, 256, 512)
TIMED = {"additive": aligner.additive, "scaled dot": aligner.scaled_dot}
BATCH_SIZE, ROUNDS = 64, 6


def quality(folder: Path) -> Mapping[str, Any]:
    """BLEU, exact matches, and alignment of a run, and its attention pattern on one sentence."""
    metrics = read_json(folder / "metrics.json")
    net, alphabet = load_translator(folder)
    pair = longest(pairs())
    (pattern,) = alignments(net, [pair], alphabet)
    return {
        "bleu": metrics["bleu"],
        "exact match": metrics["exact_match"],
        "alignment": metrics["alignment_accuracy"],
        "source": list(pair.source),
        "target": list(pair.target),
        "pattern": [[round(x, 4) for x in row] for row in pattern.tolist()],
    }


def longest(data: Pairs) -> Pair:
    """The first of the longest validation pairs, in which the word order changes most."""
    return max(data.val, key=lambda pair: len(pair.target))


def pace(seed: int) -> Mapping[str, Any]:
    """CPU seconds of training steps of two scores in turn on the same batches, at every size.

    A round is additive, scaled, scaled, additive. CPU time hardly depends on what else runs on
    the machine, the ratio of a round not on its speed, and the median over rounds ignores those
    in which that changed. A worker has one thread.
    """
    data = pairs()
    batches = PairBatches(
        data.train, data.alphabet, batch_size=BATCH_SIZE, seed=seed, steps=ROUNDS + 1
    )
    an_epoch = steps_an_epoch(len(data.train), BATCH_SIZE)
    found: dict[str, Any] = {}
    for size in SIZES:
        nets = {name: _net(name, size, len(data.alphabet), seed) for name in TIMED}
        optimizers = {name: torch.optim.AdamW(nets[name].parameters()) for name in TIMED}
        order = ("additive", "scaled dot", "scaled dot", "additive")
        rounds = []
        for step in range(ROUNDS + 1):  # the first one warms up
            taken = dict.fromkeys(TIMED, 0.0)
            for name in order:
                taken[name] += _seconds(nets[name], optimizers[name], batches[step]) / 2
            rounds.append(taken)
        rounds = rounds[1:]
        for name in TIMED:
            found[f"{name} {size}"] = an_epoch * statistics.median(r[name] for r in rounds)
        found[f"ratio {size}"] = statistics.median(r["additive"] / r["scaled dot"] for r in rounds)
    return found


def _net(name: str, size: int, vocab_size: int, seed: int) -> Translator:
    attn = partial(Aligner, score=TIMED[name], size=size)
    net = Translator(attn, vocab_size, n_embd=64, hidden_size=64)
    init_weights(net, seed)
    return net


def _seconds(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    began = time.process_time()
    logits: Tensor = net(batch.source, batch.given)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return time.process_time() - began


def least(*scores: float) -> float:
    """The score of the worst arm."""
    return min(scores)


LONG = ("trainer.max_steps=1500", "trainer.val_check_interval=500")


def arm(score: str, size: int, *more: str) -> Arm:
    """One score at one width of queries and keys."""
    overrides = (f"attn=cross/{score}", f"attn.size={size}", *more)
    return Arm(f"{score.replace('_', ' ')} {size}{', long' if more else ''}", overrides)


def _shown(name: str, says: str, size: int) -> Measured:
    """Times of one processor are shown and not judged."""
    return Measured(
        name,
        says,
        AtLeast(0.0, unit="times as long"),
        role="shown",
        seeds=10,
        seconds=5,
        timed=True,
        measure=pace,
        value=f"ratio {size}",
    )


GIVEN = {"model.hidden_size": 64, "corpus": "tavi"}
AT_ONE_RATE = {"optim.lr": 7e-3, **GIVEN}
RATES = (2.3e-3, 7e-3, 2.1e-2)
BLEU = RunMetric(quality, "bleu", diverged=-math.inf)
ALIGNED = RunMetric(quality, "alignment", diverged=-math.inf)

CLAIM = Claim(
    says="Additive and scaled dot attention reach the same quality.",
    last_look=20,
    first_seed=300,
    headline="quality_narrow",
    order=9,
    predictions=(
        Trained(
            "quality_narrow",
            "At D = 32, scaled dot translates as well as additive, within 1 BLEU.",
            Within(1.0, unit="BLEU"),
            where="D = 32 after 400 steps",
            pilot=Pilot(0.199, 0.31),
            seconds=14,
            arms=(arm("scaled_dot", 32), arm("additive", 32)),
            rates=RATES,
            metric=BLEU,
            given=GIVEN,
        ),
        Trained(
            "alignment",
            "At D = 32, both attend to the right source word for most content words.",
            AtLeast(0.5, unit="of the content words, the worse arm"),
            role="secondary",
            pilot=Pilot(0.946, 0.016),
            seconds=14,
            arms=(arm("scaled_dot", 32), arm("additive", 32)),
            rates=RATES,
            contrast=least,
            metric=ALIGNED,
            given=GIVEN,
        ),
        Trained(
            "unscaled_wide",
            "At D = 512 and one learning rate, 7e-3, leaving out the scale costs at least 5 BLEU.",
            AtLeast(5.0, unit="BLEU"),
            role="secondary",
            budget="full",
            pilot=Pilot(34.2, 4.8),
            seconds=18,
            arms=(arm("scaled_dot", 512), arm("dot", 512)),
            metric=BLEU,
            given=AT_ONE_RATE,
        ),
        Trained(
            "quality_wide",
            "At D = 512 and one learning rate, 7e-3, after 1,500 steps.",
            Within(1.0, unit="BLEU"),
            role="shown",
            budget="full",
            seeds=3,
            seconds=80,
            arms=(arm("scaled_dot", 512, *LONG), arm("additive", 512, *LONG)),
            metric=BLEU,
            given=AT_ONE_RATE,
        ),
        Trained(
            "wide_early",
            "At D = 512 and one learning rate, 7e-3, after 400 steps.",
            Within(1.0, unit="BLEU"),
            role="shown",
            budget="full",
            seeds=6,
            seconds=22,
            arms=(arm("additive", 512), arm("scaled_dot", 512)),
            metric=BLEU,
            given=AT_ONE_RATE,
        ),
        _shown(
            "faster_wide", "At D = 512, how much longer an epoch with additive scores takes.", 512
        ),
        _shown("faster_narrow", "At D = 32, how much longer it takes.", 32),
    ),
)
