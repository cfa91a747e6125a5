"""Checkpoint files: sealed by a digest, read without running code, and opened as models.

What a file holds is not trusted; docs/security.md says what is checked and where.
"""

import io
import re
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from attnlab.data.corpora import Alphabet
from attnlab.errors import BadInput, first_line
from attnlab.files import is_sealed, make_importable, open_file
from attnlab.model import GPT
from attnlab.training.config import model_factory
from attnlab.training.run_directory import RunDirectory
from attnlab.training.stored_recipes import (
    check_recipe,
    check_sizes,
    check_weights,
    nodes_to_build,
)

# The entries of an archive of `torch.save`, below one directory.
ENTRIES = re.compile(
    r"[\w.~-]+/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment"
    r"|\.data/serialization_id|data/[0-9]+)",
    re.ASCII,
)
MOST_ENTRIES = 100_000


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; a pickle in it that would run code is refused.

    Raises:
        BadInput: the file is missing, damaged, or not one of ours.
    """
    try:
        with open_file(file) as stream:
            try:
                _check_archive(stream)  # the directory at its end, before all of it is read
            except ValueError as error:
                raise BadInput(
                    f"{file} is not a checkpoint of attnlab, or it is damaged: {error}"
                ) from error
            stream.seek(0)
            content = stream.read()
    except FileNotFoundError as error:
        raise BadInput(f"there is no checkpoint {file}") from error
    except OSError as error:
        raise BadInput(f"the checkpoint {file} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise BadInput(f"the checkpoint {file} does not fit into memory") from error
    if not is_sealed(content):
        raise BadInput(f"{file} is not a checkpoint of attnlab, or it is damaged")
    try:
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever PyTorch makes of a file that it did not write
        raise BadInput(f"the checkpoint {file} cannot be read: {first_line(error)}") from error
    ours = checkpoint.get("attnlab") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict) or not {"recipe", "val_losses"} <= ours.keys():
        raise BadInput(f"{file} is not a checkpoint of attnlab")
    return dict(checkpoint)


def _check_archive(stream: BinaryIO) -> None:
    """Refuse an archive with entries that `torch.save` does not write, or that would unpack to
    more than the file holds.

    Raises:
        ValueError: it is no such archive.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ValueError(f"not an archive of PyTorch ({first_line(error)})") from error
    names = [entry.filename for entry in entries]
    if len(entries) > MOST_ENTRIES or len(set(names)) < len(names):
        raise ValueError("its archive has too many entries or one of them twice")
    for entry in entries:
        if ENTRIES.fullmatch(entry.filename) is None:
            raise ValueError(f"its archive has the unknown entry {entry.filename[:80]!r}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ValueError("its archive is compressed")
    if sum(entry.file_size for entry in entries) > stream.seek(0, io.SEEK_END):
        raise ValueError("its archive declares more bytes than it has")


@dataclass(frozen=True)
class StoredModel:
    """What a checkpoint says about its model. Nothing is built or imported yet.

    Args:
        file: the checkpoint.
        recipe: "config" (the resolved configuration of the run), "alphabet", and "corpus".
        alphabet: of the recipe.
        weights: by parameter name.
    """

    file: Path
    recipe: dict[str, Any]
    alphabet: Alphabet
    weights: dict[str, torch.Tensor]

    def fill(self, net: torch.nn.Module) -> torch.nn.Module:
        """Put the weights into a model, in evaluation mode; warns of those that are not finite.

        Raises:
            BadInput: the model has other parameters.
        """
        try:
            net.load_state_dict(self.weights)
        except RuntimeError as error:
            raise BadInput(
                f"{self.file} does not hold the weights that its settings ask for; "
                "was it written by another version of attnlab?"
            ) from error
        bad = [name for name, x in self.weights.items() if not bool(x.isfinite().all())]
        if bad:
            warnings.warn(
                f"{self.file} holds weights that are not finite, in {bad[0]}"
                f"{f' and {len(bad) - 1} more' if bad[1:] else ''}",
                stacklevel=2,
            )
        return net.eval()


def read_stored_model(target: Path) -> StoredModel:
    """Read a checkpoint, or the last one of a run directory, and check that it is plain data.

    Raises:
        BadInput: there is no such thing, or it is damaged.
    """
    if not target.exists():
        raise BadInput(f"there is no run directory or checkpoint {target}")
    file = _last_checkpoint(RunDirectory(target)) if target.is_dir() else target
    checkpoint = read_checkpoint(file)
    recipe, alphabet = check_recipe(checkpoint["attnlab"]["recipe"], file)
    return StoredModel(file, recipe, alphabet, check_weights(checkpoint.get("state_dict"), file))


def load_model(target: Path | str, *, trust: bool = False) -> tuple[GPT, Alphabet]:
    """The language model of a run directory (its last checkpoint) or of a checkpoint, in
    evaluation mode.

    Args:
        target: the run directory or the checkpoint.
        trust: allow the file to name your own classes and functions by import path, which runs
            their code; modules of the current directory can then be imported. Without it, only
            public names of attnlab and a list of PyTorch's activations are used.

    Returns:
        the model on the CPU, and its alphabet: symbol i is alphabet[i], and
        `attnlab.data.corpora.encode` turns a text into ids.

    Raises:
        BadInput: there is no such thing, it is damaged, it holds another model than a GPT, or it
            names code that is not attnlab's and `trust` is false.
    """
    net, stored = load_stored(Path(target), trust=trust)
    if not isinstance(net, GPT):
        raise BadInput(f"{target} holds a {type(net).__name__}, and a GPT is needed")
    alphabet = stored.alphabet
    alphabet = "".join(alphabet) if isinstance(alphabet, tuple) else alphabet
    if len(alphabet) != net.vocab_size:
        raise BadInput(f"the alphabet in {target} must be of single characters")
    return net, alphabet


def load_stored(target: Path, *, trust: bool = False) -> tuple[torch.nn.Module, StoredModel]:
    """The model of any task, in evaluation mode, and what its checkpoint says about it.

    `load_model` has the arguments.
    """
    stored = read_stored_model(target)
    model, attn = nodes_to_build(stored.recipe, stored.file, trust=trust)
    if trust:
        make_importable(Path.cwd())
    else:
        check_sizes(model, stored.alphabet, stored.weights, stored.file)
    net = model_factory(model, attn)(len(stored.alphabet))
    return stored.fill(net), stored


def _last_checkpoint(folder: RunDirectory) -> Path:
    if not folder.status_file.exists():
        raise BadInput(f"{folder.path} is not a run directory: it has no status.json")
    if folder.last_checkpoint.exists():
        return folder.last_checkpoint
    status = folder.status()
    ended = {"diverged": "diverged at", "failed": "failed after"}.get(str(status.get("status")))
    why = f": the run {ended} step {status['step']}" if ended else " yet"
    raise BadInput(f"{folder.path} has no checkpoint{why}")
