"""What a run starts from instead of new weights: other weights, or an earlier run to continue."""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from attnlab.data.batches import TaskData
from attnlab.errors import BadInput, printable
from attnlab.files import read_file, write_atomically
from attnlab.runs.run_directory import RunDirectory
from attnlab.runs.settings import Settings, is_below, settings_with
from attnlab.training.callbacks import AtomicCheckpointIO
from attnlab.training.checkpoints import read_stored_model
from attnlab.training.lightning_module import TaskModule
from attnlab.training.resume import (
    AVERAGES,
    check_checkpoints,
    parts_of,
    read_compared,
    states_after,
)

LONGEST = 300  # characters of the settings that a message quotes


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """The SHA-256 of weights, in their order."""
    digest = hashlib.sha256()
    for x in weights.values():
        digest.update(x.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class InitialWeights:
    """Weights to start a new run from."""

    source: str  # `init_from` as typed
    weights: dict[str, Tensor]  # by the names of the model's parameters
    model: dict[str, Any]  # the settings of the group `model` that belong to them
    alphabet: Any  # of the run that trained them, as checkpoints store it; None: not known

    @property
    def sha256(self) -> str:
        """Of the weights; it belongs to the identity of the run that starts from them."""
        return digest_of(self.weights)

    @property
    def record(self) -> dict[str, Any]:
        """The entry in metrics.json."""
        return {"init_from": {"source": self.source, "sha256": self.sha256}}

    def fill(self, lit: TaskModule) -> None:
        """Put the weights into the model of a new run; BadInput if model or symbols differ."""
        name = f"init_from = {self.source}"
        ours, free = lit.recipe["config"]["model"], {"dropout", "_partial_"}
        if self.model.get("learned_positions") is False:
            free.add("block_size")
        other = {
            key: value
            for key, value in self.model.items()
            if not (key in free or is_below(f"model.{key}", "start") or ours.get(key) == value)
        }
        if other:
            shown = {k: x if isinstance(x, str) else json.dumps(x) for k, x in other.items()}
            needed = [f"model.{k}={x}" for k, x in shown.items()]
            raise BadInput(f"{name} needs {printable(' '.join(needed)[:LONGEST])}")
        if self.alphabet not in (None, lit.recipe["alphabet"]):
            raise BadInput(
                f"{name} was trained on other symbols than those of {lit.corpus.name}; use its "
                "data, or data of the same tokenizer"
            )
        theirs = {key: tuple(x.shape) for key, x in self.weights.items()}
        shapes = {key: tuple(x.shape) for key, x in lit.net.state_dict().items()}
        size = theirs.get("wte.weight", (len(lit.corpus.alphabet),))[0]
        if size != len(lit.corpus.alphabet):
            raise BadInput(
                f"{name} has {size:,} symbols, and {lit.corpus.name} has "
                f"{len(lit.corpus.alphabet):,}; set data.tokenizer to the tokenizer of the weights"
            )
        for key in sorted(theirs.keys() | shapes.keys()):
            if theirs.get(key) != shapes.get(key):
                there, here = (str(x.get(key, "missing")) for x in (theirs, shapes))
                raise BadInput(
                    f"{name} does not fit: {printable(key[:99])} is {there}, here {here}"
                )
        lit.net.load_state_dict(self.weights)


def read_initial_weights(source: str) -> InitialWeights:
    """The weights that `init_from` names: those of a run directory, of a checkpoint, or of a GPT-2
    as "hf:" with its directory or hub name. Nothing that a file asks for is built or imported.
    BadInput if there are none, they are damaged, or our GPT cannot express them."""
    if not source.startswith("hf:"):
        stored = read_stored_model(Path(source).expanduser())
        model, alphabet = stored.recipe["config"]["model"], stored.recipe["alphabet"]
        return InitialWeights(source, stored.weights, model, alphabet)
    from attnlab.interop.gpt2 import from_gpt2, settings_of_gpt2
    from attnlab.interop.transformers_loading import load_gpt2

    theirs = load_gpt2(source.removeprefix("hf:"))
    weights = from_gpt2(theirs).state_dict()
    return InitialWeights(source, weights, settings_of_gpt2(theirs.config), None)


@dataclass(frozen=True)
class EarlierRun:
    """A finished or stopped run that another one continues."""

    directory: RunDirectory
    checkpoint: dict[str, Any]  # the last one
    sha256: str  # of its weights; it belongs to the identity of the run that continues it

    @property
    def record(self) -> dict[str, Any]:
        """The entry in metrics.json."""
        run, step = str(self.directory.path), self.checkpoint["global_step"]
        return {"continued_from": {"run": run, "step": step, "sha256": self.sha256}}

    def first_checkpoint(self, lit: TaskModule, trainer: L.Trainer) -> dict[str, Any]:
        """The last checkpoint, with the recipe and learning rate of the new run, and with the
        initial state of new callbacks."""
        checkpoint = deepcopy(self.checkpoint)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        averages = any(isinstance(callback, WeightAveraging) for callback in callbacks)
        if averages != (AVERAGES[0] in checkpoint):
            added = "add" if averages else "remove"
            raise BadInput(
                f"continue_from cannot {added} an average of the weights (callbacks=ema)"
            )
        checkpoint["attnlab"]["recipe"] = lit.recipe
        new = {c.state_key: c.state_dict() for c in callbacks}
        states = {key: state for key, state in new.items() if state} | checkpoint["callbacks"]
        checkpoint["callbacks"] = states | {"RunCheckpoints": new["RunCheckpoints"]}
        # The last batch of the earlier run is no longer the last one, nor has the epoch ended.
        loop, checkpoint["epoch"] = checkpoint["loops"]["fit_loop"], 0
        loop["epoch_loop.batch_progress"]["is_last_batch"] = False
        for progress in loop["epoch_progress"].values():
            progress |= {"processed": 0, "completed": 0}
        optimizer, schedule = states_after(checkpoint["global_step"], lit, trainer)
        checkpoint["lr_schedulers"] = [schedule]
        (stored,) = checkpoint["optimizer_states"]
        for part, new_part in zip(parts_of(stored), parts_of(optimizer), strict=True):
            part["param_groups"] = new_part["param_groups"]
        return checkpoint

    def begin(self, checkpoint: dict[str, Any], directory: RunDirectory, max_steps: int) -> None:
        """Write the first checkpoints of the new run, and print its step and learning rate."""
        best = self.directory.last_checkpoint.with_name("best.ckpt")
        if best.exists():
            write_atomically(directory.last_checkpoint.with_name(best.name), read_file(best))
        AtomicCheckpointIO().save_checkpoint(checkpoint, directory.last_checkpoint)
        both = self.checkpoint, checkpoint
        before, now = (x["lr_schedulers"][0]["_last_lr"][0] for x in both)
        print(
            f"Continuing {self.directory.path} from step {checkpoint['global_step']} to "
            f"{max_steps}, with the schedule of {max_steps} steps: the learning rate, last "
            f"{before:.3g}, is now {now:.3g}."
        )


def read_earlier_run(settings: Settings, corpus: TaskData) -> EarlierRun:
    """The run that the setting `continue_from` names. BadInput if there is none, if it has not
    ended, or if it would have trained differently with the other settings."""
    named, max_steps = settings["continue_from"], settings["trainer"]["max_steps"]
    directory = RunDirectory(Path(named).expanduser())
    name = f"continue_from = {named}"
    if not directory.status_file.exists():
        raise BadInput(f"{name} is not a run directory: it has no status.json")
    status = directory.status()["status"]
    if status not in ("finished", "stopped"):
        raise BadInput(f"{name} is {status}; only a finished or stopped run can be continued")
    check_checkpoints(directory)
    checkpoint, differing, trained_on = read_compared(directory.last_checkpoint, settings)
    if differing := [key for key in differing if not is_below(key, "free")]:
        raise BadInput(
            f"{name} has another configuration ({', '.join(differing[:4])}); use its settings "
            f"and change only {', '.join(settings_with('free')[2:])}"
        )
    if trained_on != corpus.sha256:
        raise BadInput(f"{name} was trained on data other than the current {corpus.name}")
    if max_steps <= (step := checkpoint["global_step"]):
        raise BadInput(
            f"trainer.max_steps = {max_steps} must be more than the {step} steps that {named} "
            "has done"
        )
    return EarlierRun(directory, checkpoint, digest_of(checkpoint["state_dict"]))


def read_origin(
    settings: Settings, corpus: TaskData, folder: Path
) -> EarlierRun | InitialWeights | None:
    """What a run starts from, if not from new weights; BadInput if force=true would delete it."""
    continued, source = settings["continue_from"], settings["init_from"]
    for named in (continued, source):
        place = None if named is None else Path(named).expanduser().resolve()
        if place and not named.startswith("hf:") and folder.resolve() in (place, *place.parents):
            raise BadInput(f"{folder} is the run to start from; use another name or hydra.run.dir")
    if continued is not None:
        return read_earlier_run(settings, corpus)
    return None if source is None else read_initial_weights(source)
