"""The commands `attnlab evaluate` and `attnlab patch`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from attnlab.claims.configs import compose_config, hydra_conf
from attnlab.data.batches import IGNORED
from attnlab.data.corpora import CHARACTERS, Corpus, encode
from attnlab.data.tokenizers import Tokenizer
from attnlab.errors import BadInput
from attnlab.installation import lab_path
from attnlab.probes import measures
from attnlab.probes.capture import eval_mode
from attnlab.probes.patching import patch_heads
from attnlab.training.checkpoints import load_model
from attnlab.training.factories import data_factory
from attnlab.training.lightning_module import GPTModule


def evaluate(
    target: Path | str, overrides: Sequence[str], *, trust: bool = False
) -> dict[str, Any]:
    """The loss of a model on the validation part of any data, in the model's own symbols.

    `overrides` choose the data, as for a training: data=text data.path=my.txt. The other arguments
    are those of `attnlab.training.checkpoints.load_model`.

    Returns the name of the corpus, the number of predictions, the loss in nats, bits per byte of
    the text in UTF-8 (None for a task), and the loss at each position (NaN if none is predicted).
    Raises BadInput if there is no such model or data, or if the model lacks one of its symbols.
    """
    net, alphabet = load_model(target, trust=trust)
    for override in overrides:
        if override.partition("=")[0].split(".")[0] != "data":
            raise BadInput(f"{override} does not choose data; use data=... and data.KEY=...")
    with hydra_conf(lab_path("conf")):
        typed = [*overrides, f"model.block_size={net.block_size}"]
        cfg, _ = compose_config(typed, 0, lab_path("experiments"))
    corpus = data_factory(cfg.data)()
    if not isinstance(corpus, GPTModule.data_class):
        raise BadInput(f"data = {corpus.name} are not for a GPT; choose a text")
    tokenizer = alphabet if isinstance(alphabet, Tokenizer) else CHARACTERS
    if tokenizer != CHARACTERS or isinstance(corpus.alphabet, Tokenizer):
        if not isinstance(corpus, Corpus):
            raise BadInput(f"data = {corpus.name} is not text, which the model's tokenizer needs")
        corpus = Corpus.from_pieces(corpus.name, [corpus.text], tokenizer)
    of_model = torch.arange(len(alphabet))  # id in the data -> id in the model
    if tokenizer == CHARACTERS:
        of_model = encode("".join(corpus.alphabet), alphabet)
    corpus.check_length(net.block_size)
    sums, counts = torch.zeros(2, net.block_size, dtype=torch.float64)
    with eval_mode(net):
        for x, y in corpus.held_out("val", net.block_size):
            scored = y != IGNORED
            targets = torch.where(scored, of_model[y.clamp(min=0)], IGNORED)
            sums[: y.shape[1]] += measures.cross_entropies(net(of_model[x]), targets).sum(0)
            counts[: y.shape[1]] += scored.sum(0)
    loss = float(sums.sum() / counts.sum())
    return {
        "corpus": corpus.name,
        "predictions": int(counts.sum()),
        "loss": loss,
        "bits_per_byte": corpus.bits_per_byte(loss) if isinstance(corpus, Corpus) else None,
        "by_position": (sums / counts).tolist(),
    }


def evaluation_table(found: dict[str, Any]) -> Table:
    """The result of `evaluate`, with the loss at positions 0, 1, 2, 4, ... and at the last."""
    rows = Table.grid(padding=(0, 2))
    rows.add_row("data", f"{found['corpus']}, {found['predictions']:,} predictions")
    rows.add_row("loss", f"{found['loss']:.4f} nats")
    if found["bits_per_byte"] is not None:
        rows.add_row("bits per byte", f"{found['bits_per_byte']:.4f}")
    last = len(found["by_position"]) - 1
    for t in sorted({0, last, *(2**i for i in range(20) if 2**i < last)}):
        rows.add_row(f"at position {t}", f"{found['by_position'][t]:.4f}")
    return rows


def patch(
    target: Path | str, clean: str, corrupt: str, answers: str | None, *, trust: bool = False
) -> dict[str, Any]:
    """The effect of exchanging the output of each head between two texts, see `patch_heads`.

    `answers` holds the right symbol after each text; None takes the most likely ones. Returns them
    and the rows of the heads. Raises BadInput as `patch_heads` and `checkpoints.load_model` do, or
    if the texts do not fit the model.
    """
    net, alphabet = load_model(target, trust=trust)
    first, second = (encode(text, alphabet) for text in (clean, corrupt))
    for n in (len(first), len(second)):
        if not 1 <= n <= net.block_size:
            raise BadInput(f"a text has {n} symbols; the model takes 1 to {net.block_size}")
    symbols = None if answers is None else tuple(encode(answers, alphabet).tolist())
    if symbols is not None and len(symbols) != 2:
        raise BadInput(f"answers = {answers!r} must be two symbols")
    heads, (right, wrong) = patch_heads(net, first, second, symbols)
    return {"answers": [alphabet[right], alphabet[wrong]], "heads": heads}


def patch_table(found: dict[str, Any]) -> Table:
    """The result of `patch`, one row per head."""
    right, wrong = map(repr, found["answers"])
    title = f"{right} against {wrong}: shares of the logit difference"
    keys = ("restored", "lost", "ablated")
    rows = Table("head", *keys, title=title, min_width=len(title))  # or the title is wrapped
    for each in found["heads"]:
        rows.add_row(f"L{each['layer']}H{each['head']}", *(f"{each[key]:.3f}" for key in keys))
    return rows
