"""What a run starts from instead of new weights: its own last checkpoint, an earlier run to
continue, or other weights."""

import hashlib
import json
import warnings
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
from attnlab.files import check_plain, read_file, write_atomically
from attnlab.probes.base import Probe
from attnlab.runs.run_directory import RERUN, RunDirectory
from attnlab.runs.settings import Role, Settings, differences, flat, is_below, settings_with
from attnlab.training.callbacks import AtomicCheckpointIO
from attnlab.training.checkpoints import conditions, read_checkpoint, read_stored_model, versions
from attnlab.training.lightning_module import TaskModule

LONGEST = 300  # characters of a file that a message quotes
PARTS = ("state_dict", "loops", "callbacks", "optimizer_states", "lr_schedulers")
AVERAGES = ("current_model_state", "averaging_state")  # of Lightning's WeightAveraging
DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


def check_checkpoints(directory: RunDirectory) -> None:
    """Refuse, by BadInput, a damaged last.ckpt or best.ckpt; either may be missing."""
    for file in (directory.last_checkpoint, directory.last_checkpoint.with_name("best.ckpt")):
        try:
            if file.exists():
                read_checkpoint(file)
        except BadInput as error:
            raise BadInput(f"{error}; {RERUN}, or delete the file") from error


def read_resumable(
    directory: RunDirectory, settings: Settings, corpus: TaskData
) -> dict[str, Any] | None:
    """The checkpoint that a run resumes from, if there is one; BadInput if it is damaged or of
    another run."""
    file = directory.last_checkpoint
    return _read_compared(directory, settings, corpus, str(file), RERUN) if file.exists() else None


def _read_compared(
    directory: RunDirectory,
    settings: Settings,
    corpus: TaskData,
    name: str,
    advice: str,
    *may_differ: Role,
) -> dict[str, Any]:
    """The last checkpoint of a run. BadInput if it is damaged, or if it belongs to other settings
    or data. They are only compared: a run is built from the settings of its command."""
    check_checkpoints(directory)  # best.ckpt is kept unless a later loss is lower
    checkpoint = read_checkpoint(directory.last_checkpoint)
    recipe, found = checkpoint["attnlab"]["recipe"], checkpoint["attnlab"].get("versions")
    try:
        check_plain(recipe)
        changed = differences(recipe["config"], settings)
        trained_on = recipe["corpus_sha256"]
        if type(checkpoint["global_step"]) is not int:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadInput(f"{name} does not say its run and its step; {RERUN}") from None
    if found != versions():
        current = ", ".join(f"{name} {number}" for name, number in versions().items())
        raise BadInput(
            f"{name} was written by other versions than {current}, which may compute other bits; "
            f"{RERUN}, or init_from= to start from its weights"
        )
    if changed := [key for key in changed if not is_below(key, *may_differ)]:
        others = ", ".join(changed[:4])
        raise BadInput(f"{name} belongs to another configuration ({others}); {advice}")
    if trained_on != corpus.sha256:
        raise BadInput(f"{name} was trained on data other than the current {corpus.name}; {RERUN}")
    return checkpoint


def prepare_resume(checkpoint: dict[str, Any], lit: TaskModule, trainer: L.Trainer) -> None:
    """Refuse, by BadInput, a checkpoint that lacks a part or has other weights. Lightning restores
    what it finds and starts other parts from zero without a warning. Warn of new `conditions`, and
    keep them for metrics.json, which holds those of the last part of a run."""
    # Lightning loads weights before it converts the module, which would round those in 64-true.
    lit.to(DTYPES.get(str(trainer.precision)))
    step, parts = checkpoint["global_step"], list(PARTS) + list(AVERAGES) * _averages(trainer)
    missing = [part for part in parts if not checkpoint.get(part)]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        key = callback.state_key  # a run may resume with other probes
        if not missing and not isinstance(callback, Probe) and callback.state_dict():
            missing += [] if key in checkpoint["callbacks"] else [key]
    try:
        if missing:
            raise RuntimeError(f"it lacks {', '.join(missing)}")
        if not 0 <= step <= trainer.max_steps:
            raise RuntimeError("its step is not between 0 and trainer.max_steps")
        lit.load_state_dict(checkpoint["state_dict"])
        stored, own = checkpoint["attnlab"], {"own_code": lit.recipe["own_code"]}
        now = flat({"": conditions(trainer) | own | {"git": lit.recipe["git"]}})
        then = flat({"": stored["conditions"] | {"git": stored["recipe"].get("git")}})
        changes = {
            key[1:]: f"{key[1:]} = {str(x)[:50]} (was {printable(str(then[key])[:50])})"
            for key, x in now.items()
            if str(then.get(key, x)) != str(x)
        }
        lit.resumed = [*map(str, stored.get("resumed", []))]
        lit.resumed += [f"from step {step} with {change}" for change in changes.values()]
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:LONGEST]
        sentence = f"the checkpoint of step {step} cannot be resumed from: {printable(reason)}"
        raise BadInput(f"{sentence}; {RERUN}") from error
    # A commit may have changed other files only, so it is recorded without a warning.
    if warned := ", ".join(x for key, x in changes.items() if "git" not in key.split(".")):
        sentence = f"this run resumes from step {step} with {warned}; "
        warnings.warn(f"{sentence}an uninterrupted run may have another result", stacklevel=2)


def _averages(trainer: L.Trainer) -> bool:
    """Whether a callback keeps an average of the weights."""
    return any(isinstance(x, WeightAveraging) for x in trainer.callbacks)  # type: ignore[attr-defined]


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
        name, corpus = f"init_from = {self.source}", lit.corpus
        ours = lit.recipe["config"]["model"]
        free = {"dropout", "_partial_"}
        if self.model.get("learned_positions") is False:
            free.add("block_size")
        needed = [
            f"model.{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in self.model.items()
            if not (key in free or is_below(f"model.{key}", "start") or ours.get(key) == value)
        ]
        if needed:
            raise BadInput(f"{name} needs {printable(' '.join(needed)[:LONGEST])}")
        if self.alphabet not in (None, lit.recipe["alphabet"]):
            raise BadInput(
                f"{name} was trained on other symbols than those of {corpus.name}; use its data, "
                "or data of the same tokenizer"
            )
        table, symbols = self.weights.get("wte.weight"), len(corpus.alphabet)
        if table is not None and table.ndim and len(table) != symbols:
            raise BadInput(
                f"{name} has {len(table):,} symbols, and {corpus.name} has {symbols:,}; "
                "set data.tokenizer to the tokenizer of the weights"
            )
        try:
            lit.net.load_state_dict(self.weights)
        except RuntimeError as error:
            reason = " ".join(str(error).splitlines()[1].split())[:LONGEST]
            raise BadInput(f"{name} does not fit: {printable(reason)}") from error


def read_initial_weights(source: str) -> InitialWeights:
    """The weights that `init_from` names: those of a run directory, of a checkpoint, or of a GPT-2
    as "hf:" with its directory or hub name. Nothing that a file asks for is built or imported.
    BadInput if there are none, they are damaged, or our GPT cannot express them."""
    if not source.startswith("hf:"):
        stored = read_stored_model(Path(source).expanduser())
        model, alphabet = stored.recipe["config"]["model"], stored.recipe["alphabet"]
        return InitialWeights(source, stored.weights, model, alphabet)
    from attnlab.interop.gpt2 import from_gpt2, settings_of_gpt2
    from attnlab.interop.transformers_loading import load_language_model

    theirs, _ = load_language_model(source.removeprefix("hf:"), tokenizer=False)
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
        checkpoint, averages = deepcopy(self.checkpoint), _averages(trainer)
        if averages != (AVERAGES[0] in checkpoint):
            added = "add" if averages else "remove"
            raise BadInput(
                f"continue_from cannot {added} an average of the weights (callbacks=ema)"
            )
        checkpoint["attnlab"]["recipe"] = lit.recipe
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        new = {c.state_key: state for c in callbacks if (state := c.state_dict())}
        states = new | checkpoint["callbacks"]
        checkpoint["callbacks"] = states | {"RunCheckpoints": new["RunCheckpoints"]}
        # The last batch of the earlier run is no longer the last one, nor has the epoch ended.
        loop, checkpoint["epoch"] = checkpoint["loops"]["fit_loop"], 0
        loop["epoch_loop.batch_progress"]["is_last_batch"] = False
        for progress in loop["epoch_progress"].values():
            progress |= {"processed": 0, "completed": 0}
        optimizer, schedule = lit.optim(lit.net, trainer.max_steps)
        optimizer.step()  # without gradients; PyTorch warns of schedules that are stepped first
        for _ in range(checkpoint["global_step"]):
            schedule.step()
        checkpoint["lr_schedulers"] = [schedule.state_dict()]
        (stored,), rates = checkpoint["optimizer_states"], optimizer.state_dict()
        parts = zip(stored.get("parts", [stored]), rates.get("parts", [rates]), strict=True)
        for part, new_part in parts:  # of a `Together`, or the one optimizer
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
    directory, name = RunDirectory(Path(named).expanduser()), f"continue_from = {named}"
    if not directory.status_file.exists():
        raise BadInput(f"{name} is not a run directory: it has no status.json")
    status = directory.status()["status"]
    if status not in ("finished", "stopped"):
        raise BadInput(f"{name} is {status}; only a finished or stopped run can be continued")
    advice = f"use its settings and change only {', '.join(settings_with('free')[2:])}"
    checkpoint = _read_compared(directory, settings, corpus, name, advice, "free")
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
    named = continued or source
    if named and not named.startswith("hf:"):
        place = Path(named).expanduser().resolve()
        if folder.resolve() in (place, *place.parents):
            raise BadInput(f"{folder} is the run to start from; use another name or hydra.run.dir")
    if continued is not None:
        return read_earlier_run(settings, corpus)
    return None if source is None else read_initial_weights(source)
