"""What `attnlab evaluate` and `attnlab patch` do with a trained model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.table import Table

from attnlab.data.batches import IGNORED
from attnlab.data.corpora import Corpus, decode, encode
from attnlab.errors import BadInput, first_line
from attnlab.files import lab_path
from attnlab.probes import measures
from attnlab.probes.capture import eval_mode
from attnlab.probes.patching import HeadEffect, patch_heads
from attnlab.training.checkpoints import load_model
from attnlab.training.config import data_factory
from attnlab.training.lightning_module import GPTModule


@dataclass(frozen=True)
class Evaluation:
    """The loss of a model on held-out data.

    Args:
        corpus: name of the data.
        predictions: how many symbols were predicted.
        loss: nats a symbol.
        bits_per_byte: of the text in UTF-8; None for data that are no text.
        by_position: nats at each position; NaN where nothing is predicted.
    """

    corpus: str
    predictions: int
    loss: float
    bits_per_byte: float | None
    by_position: list[float]

    def table(self) -> Table:
        """The figures, with the loss at positions 0, 1, 2, 4, ... and at the last."""
        rows = Table.grid(padding=(0, 2))
        rows.add_row("data", f"{self.corpus}, {self.predictions:,} predictions")
        rows.add_row("loss", f"{self.loss:.4f} nats")
        if self.bits_per_byte is not None:
            rows.add_row("bits per byte", f"{self.bits_per_byte:.4f}")
        last = len(self.by_position) - 1
        for t in sorted({0, last, *(2**i for i in range(20) if 2**i < last)}):
            rows.add_row(f"at position {t}", f"{self.by_position[t]:.4f}")
        return rows


def evaluate(target: Path | str, overrides: Sequence[str], *, trust: bool = False) -> Evaluation:
    """The loss of a run on the validation part of any data.

    Args:
        target: a run directory or a checkpoint.
        overrides: which data, as for a training: data=text data.path=my.txt.
        trust: as for `attnlab.training.checkpoints.load_model`.

    Raises:
        BadInput: there is no such model or data, or the data have symbols that the model lacks.
    """
    net, alphabet = load_model(target, trust=trust)
    for override in overrides:
        if override.partition("=")[0].split(".")[0] != "data":
            raise BadInput(f"{override} does not choose data; use data=... and data.KEY=...")
    chosen = [*overrides, f"model.block_size={net.block_size}"]
    try:
        with initialize_config_dir(str(lab_path("conf").resolve()), version_base="1.3"):
            node = compose("train", chosen).data
        corpus = data_factory(node)()
    except (HydraException, OmegaConfBaseException) as error:
        raise BadInput(f"{' '.join(overrides)} cannot be composed: {first_line(error)}") from error
    if not isinstance(corpus, GPTModule.data_class):
        raise BadInput(f"data = {corpus.name} are not for a GPT; choose a text")
    corpus.check_length(net.block_size)
    of_model = encode("".join(corpus.alphabet), alphabet)  # id in the data -> id in the model
    sums, counts = torch.zeros(2, net.block_size, dtype=torch.float64)
    with eval_mode(net):
        for x, y in corpus.held_out("val", net.block_size):
            scored = y != IGNORED
            targets = torch.where(scored, of_model[y.clamp(min=0)], IGNORED)
            losses = measures.cross_entropies(net(of_model[x]), targets)
            sums[: y.shape[1]] += losses.sum(0)
            counts[: y.shape[1]] += scored.sum(0)
    total, bits_per_byte = float(sums.sum()), None
    if isinstance(corpus, Corpus):
        read = len(decode(corpus.val[1:], corpus.alphabet).encode())
        bits_per_byte = total / math.log(2) / read
    return Evaluation(
        corpus=corpus.name,
        predictions=int(counts.sum()),
        loss=total / float(counts.sum()),
        bits_per_byte=bits_per_byte,
        by_position=(sums / counts).tolist(),
    )


@dataclass(frozen=True)
class Patched:
    """The heads that carry the difference between two texts.

    Args:
        answers: the two symbols.
        effects: of each head, the most restoring one first.
    """

    answers: tuple[str, str]
    effects: list[HeadEffect]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"answers": list(self.answers), "heads": [vars(each) for each in self.effects]}

    def table(self) -> Table:
        """One row per head; shares of the difference between the texts."""
        right, wrong = (repr(answer) for answer in self.answers)
        rows = Table(title=f"{right} against {wrong}: shares of the logit difference")
        for heading in ("head", "restored", "lost", "zero ablation"):
            rows.add_column(heading, justify="right")
        for each in self.effects:
            shares = (each.restored, each.lost, each.ablated)
            rows.add_row(f"L{each.layer}H{each.head}", *(f"{share:.3f}" for share in shares))
        return rows


def patch(
    target: Path | str, clean: str, corrupt: str, answers: str | None, *, trust: bool = False
) -> Patched:
    """The effect of exchanging the output of each head between two texts.

    Args:
        target: a run directory or a checkpoint.
        clean, corrupt: the texts, equally long.
        answers: the symbol that is right after each; None for the likeliest ones.
        trust: as for `attnlab.training.checkpoints.load_model`.

    Raises:
        BadInput: the texts do not fit the model or each other, or the model predicts the same.
    """
    net, alphabet = load_model(target, trust=trust)
    first, second = (encode(text, alphabet) for text in (clean, corrupt))
    for ids in (first, second):
        if not 1 <= len(ids) <= net.block_size:
            limit = net.block_size
            raise BadInput(f"a text has {len(ids)} symbols; the model takes 1 to {limit}")
    symbols = None
    if answers is not None:
        if len(answers) != 2:
            raise BadInput(f"answers = {answers!r} must be two symbols")
        encode(answers, alphabet)  # refuses symbols that the model does not know
        symbols = (alphabet.index(answers[0]), alphabet.index(answers[1]))
    effects, (right, wrong) = patch_heads(net, first, second, symbols)
    return Patched((alphabet[right], alphabet[wrong]), effects)
