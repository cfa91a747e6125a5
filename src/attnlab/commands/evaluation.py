"""The commands `attnlab evaluate` and `attnlab patch`."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.table import Table
from yaml import YAMLError

from attnlab.commands.composing import compose_config, hydra_conf
from attnlab.data.corpora import CHARACTERS, Corpus, encode
from attnlab.data.tokenizers import Tokenizer
from attnlab.errors import BadInput, first_line
from attnlab.installation import lab_path
from attnlab.probes.patching import patch_heads
from attnlab.runs.reading import read_run
from attnlab.runs.settings import last_of
from attnlab.training.checkpoints import load_model, read_stored_model
from attnlab.training.eval_lengths import at_length, by_position, data_at
from attnlab.training.factories import data_factory
from attnlab.training.lightning_module import GPTModule

# Data that are neither read from a file nor downloaded.
INCLUDED = frozenset({"corpora.tinyshakespeare", "plays.plays"}) | {
    f"sequences.{task}"
    for task in ("copy", "fuzzy_recall", "induction", "mqar", "noisy_recall", "parity")
}
UNFINISHED = frozenset({"diverged", "failed", "interrupted", "running"})
MOST = 10**7  # in a stored setting of data


def evaluate(
    target: Path | str, overrides: Sequence[str], *, trust: bool = False
) -> dict[str, Any]:
    """The loss of a model on the validation part of its own or any data, in its own symbols.

    `overrides` choose other data, as for a training: data=text data.path=my.txt, or change its
    own: data.pairs=4. length=256 evaluates in windows of 256, which may be longer than those of
    the training. The other arguments are those of `attnlab.training.checkpoints.load_model`.

    Returns the name of the corpus, the length, the largest one in the training, and the number of
    predictions; the loss in nats, bits per byte of the text in UTF-8 (None for a task), the
    accuracy, and loss and accuracy at each position (NaN if none is predicted). Raises BadInput if
    there is no such model or data, if the model lacks one of its symbols, or if the length is too
    large for it.
    """
    net, alphabet = load_model(target, trust=trust)
    recipe = read_stored_model(Path(target)).recipe
    typed = last_of(overrides)
    _, _, chosen = typed.pop("length", f"length={net.block_size}").partition("=")
    if not chosen.isdecimal():
        raise BadInput(f"length = {chosen} must be a whole number")
    length, overrides = int(chosen), list(typed.values())
    for key, override in typed.items():
        if key.split(".")[0] != "data":
            raise BadInput(
                f"{override} does not choose data; use data=..., data.KEY=... or length=..."
            )
    longer = at_length(net, recipe["config"], length)
    settings = _data_settings(recipe, overrides, net.block_size, trust=trust)
    corpus = data_factory(settings)()
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
    if (status := read_run(Path(target)).status) in UNFINISHED:
        warnings.warn(f"{target} is {status}; its last checkpoint is evaluated", stacklevel=2)
    if not overrides and corpus.sha256 != recipe.get("corpus_sha256"):
        warnings.warn(f"data = {corpus.name} have changed since the training", stacklevel=2)
    corpus = data_at(corpus, settings, length)
    result = by_position(longer, corpus.held_out("val", length), length, of_model)
    bits = corpus.bits_per_byte(result["loss"]) if isinstance(corpus, Corpus) else None
    sizes = {"corpus": corpus.name, "length": length, "trained_length": net.block_size}
    return sizes | {"bits_per_byte": bits} | result


def _data_settings(
    recipe: Mapping[str, Any], overrides: Sequence[str], block_size: int, *, trust: bool
) -> DictConfig:
    """The group `data` that the overrides choose or, without data=..., change in a recipe."""
    if any(override.startswith("data=") for override in overrides):
        with hydra_conf(lab_path("conf")):
            typed = [*overrides, f"model.block_size={block_size}"]
            cfg, _ = compose_config(typed, 0, lab_path("experiments"))
        return cast(DictConfig, cfg.data)
    stored = recipe["config"].get("data")
    if not isinstance(stored, dict) or not isinstance(target := stored.get("_target_"), str):
        raise BadInput("the run does not say its data; choose some with data=...")
    if not trust:
        if target.removeprefix("attnlab.data.") not in INCLUDED:
            raise BadInput(
                f"the run's data come from outside of attnlab ({target[:99]}); type its data=... "
                "and data.KEY=..., or allow it with --trust"
            )
        # Numbers only: a tokenizer may be a file, and the model has its own.
        stored = {key: x for key, x in stored.items() if key == "_target_" or type(x) is int}
        if large := [key for key, x in stored.items() if type(x) is int and x > MOST]:
            raise BadInput(f"the run's data.{large[0][:99]} is too large; allow it with --trust")
    try:
        changed = OmegaConf.merge({"data": stored}, OmegaConf.from_dotlist(list(overrides)))
        OmegaConf.resolve(changed)
    except (OmegaConfBaseException, YAMLError) as error:
        raise BadInput(f"{' '.join(overrides)} cannot be read: {first_line(error)}") from error
    return cast(DictConfig, changed.data)


def evaluation_table(found: dict[str, Any]) -> Table:
    """The result of `evaluate`, with the loss at positions 0, 1, 2, 4, ... and at the last."""
    rows = Table.grid(padding=(0, 2))
    rows.add_row("data", f"{found['corpus']}, {found['predictions']:,} predictions")
    rows.add_row("loss", f"{found['loss']:.4f} nats")
    rows.add_row("accuracy", f"{found['accuracy']:.2%}")
    if found["bits_per_byte"] is not None:
        rows.add_row("bits per byte", f"{found['bits_per_byte']:.4f}")
    last, trained = found["length"] - 1, found["trained_length"]
    for t in sorted({0, last, *(2**i for i in range(20) if 2**i < last)}):
        beyond = " (beyond the trained length)" if t >= trained else ""
        loss, accuracy = found["by_position"][t], found["accuracy_by_position"][t]
        if math.isnan(accuracy) and math.isfinite(found["accuracy"]):
            continue  # nothing is predicted there
        rows.add_row(f"at position {t}", f"{loss:.4f} nats, {accuracy:.2%}{beyond}")
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
