"""The verb `attnlab evaluate`: the loss of a trained model on its own or other text."""

from pathlib import Path
from typing import Any

from attnlab.data.corpus import Corpus, text
from attnlab.errors import BadInput
from attnlab.training.build import build
from attnlab.training.checkpoints import load_model, read_checkpoint
from attnlab.training.lengths import at_length, by_position

# Data that are neither read from a named file nor from the hub. A prefix would be no test.
INCLUDED = {
    "attnlab.data.corpus.tinyshakespeare",
    "attnlab.data.plays.plays",
    *(
        f"attnlab.data.sequences.{task}"
        for task in "copy induction mqar noisy_recall parity".split()
    ),
}


def evaluate(
    target: Path, file: Path | None, length: int | None, *, trust: bool = False
) -> dict[str, Any]:
    """The loss of a model on the validation part of its own data or of a text file.

    `length` evaluates in windows of so many symbols, which may be longer than those of the
    training. Returns the name of the data, the length, that of the training, bits per byte (None
    for a task), and what `by_position` returns. BadInput if there is no such model or data, if
    the model has other symbols, or if the length does not fit.
    """
    net, alphabet = load_model(target, trust=trust)
    settings = read_checkpoint(target)["attnlab"]["config"]
    stored = settings["data"]
    if file is not None:
        data: Any = text(str(file), stored.get("tokenizer", "characters"))
    elif trust or stored["_target_"] in INCLUDED:
        data = build(stored, "data", apart=["batch_size", "eval_lengths", "source"])()
    else:
        raise BadInput(
            f"the run's data are not included in attnlab ({stored['_target_']}); name a text with "
            "--file or, if you trust the run, allow it to load them with --trust"
        )
    if list(data.alphabet) != list(alphabet):
        raise BadInput(f"{data.name} has other symbols than the model")
    T = net.block_size if length is None else length
    found = by_position(at_length(net, settings, T), data.at_length(T).held_out("val", T), T)
    bits = data.bits_per_byte(found["loss"]) if isinstance(data, Corpus) else None
    sizes = {"data": data.name, "length": T, "trained_length": net.block_size}
    return sizes | {"bits_per_byte": bits} | found
