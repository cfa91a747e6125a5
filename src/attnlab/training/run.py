"""The composition root: from a configuration to a trained model and a run folder.

The only place that builds objects from configurations; train.py, tests, sweeps and claims all
call `run`, and everything that opens a finished run calls `load_model`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab import fast_imports
from attnlab.data.corpus import Corpus
from attnlab.errors import BadInput, with_its_place
from attnlab.model import GPT
from attnlab.training.checkpoint_file import read_checkpoint
from attnlab.training.instantiate import build, checked, unknown
from attnlab.training.run_directory import RunDirectory, fingerprint
from attnlab.training.tasks import Data, Net, task_of
from attnlab.translation.model import Translator
from attnlab.translation.pairs import Pairs

GROUPS = {"attn", "model", "data", "optim", "trainer", "probes", "logger"}
SETTINGS: dict[str, Any] = {
    "name": str | int | float,
    "outputs": str,
    "seed": int,
    "force": bool,
    "checkpoint_every": int,
}
COUNTS = (
    "data.batch_size",
    "checkpoint_every",
    "trainer.max_steps",
    "trainer.val_check_interval",
    "trainer.log_every_n_steps",
    "trainer.accumulate_grad_batches",
)
# Gradients of a scaled fp16 loss are clipped wrongly beside a fused optimizer, so no 16-mixed.
PRECISIONS = ("auto", "fastest", "32-true", "bf16-mixed", "bf16-true", "64-true")
WHY_FIXED = "a run has max_steps steps, validates on the whole text and clips by the norm"
TRAINER_FIXED: dict[str, Any] = {
    "check_val_every_n_epoch": None,
    "num_sanity_val_steps": 0,
    "enable_checkpointing": False,
    "gradient_clip_algorithm": "norm",
    "fast_dev_run": False,
    "overfit_batches": 0,
    "limit_train_batches": 1.0,
    "limit_val_batches": 1.0,
    "max_epochs": None,
    "max_time": None,
}
# Stands in its group for the reader's sake and is not its target's.
BATCH_SIZE = ("batch_size",)


@dataclass
class Result:
    """What a run left.

    Args:
        folder: the run folder.
        metrics: the content of metrics.json.
        fresh: False where the folder was finished before, and nothing was done.
    """

    folder: Path
    metrics: dict[str, Any]
    fresh: bool = True


def run(cfg: DictConfig, folder: Path, *, variant: str, overrides: Iterable[str] = ()) -> Result:
    """Train one model, or go on with an interrupted run, or return what a finished one left.

    Args:
        cfg: the composed configuration of conf/train.yaml.
        folder: the run folder, as `attnlab.training.run_directory.folder_for` names it.
        variant: the file of conf/attn, for metrics.json.
        overrides: as typed, for `.hydra/overrides.yaml`.

    Raises:
        BadInput: the configuration cannot be run; nothing was written then.
    """
    check(cfg)
    construct(cfg, vocab_size=1)  # bad sizes are refused before a corpus is fetched
    task, corpus = task_of(cfg), build_corpus(cfg)
    if not isinstance(corpus, task.data):
        raise BadInput(
            f"data._target_ = {cfg.data._target_} is not for "
            f"model._target_ = {cfg.model._target_}, which needs {task.needs}"
        )
    net = build_model(cfg, len(corpus.alphabet))
    task.check(net, corpus, cfg)
    digest = fingerprint(cfg, corpus.sha256)
    held = RunDirectory(folder)
    held.status()  # refuses a folder that is somebody else's, with force=true too
    if not cfg.force:
        held.check_is_ours(cfg, digest)
        if held.is_done():
            return Result(folder, held.metrics(), fresh=False)
    with fast_imports.imports():  # PyTorch's first optimizer imports its compiler
        optim = build_optimizer(cfg)
    # Lightning takes seconds to import; whatever could be refused without it has been by now.
    with fast_imports.imports():
        fast_imports.import_torchmetrics()
        from attnlab.training.fit import fit
    return Result(folder, fit(cfg, net, corpus, optim, held, digest, variant, overrides))


def check(cfg: DictConfig) -> None:
    """Refuse a configuration with unknown or missing settings, or values of the wrong type.

    Raises:
        BadInput: with the first that is wrong.
    """
    try:
        OmegaConf.resolve(cfg)
        missing = sorted(str(key) for key in OmegaConf.missing_keys(cfg))
    except OmegaConfBaseException as error:
        raise BadInput(str(error).splitlines()[0]) from error
    for key in cfg:
        name = str(key)
        if name in missing:
            continue
        if name in SETTINGS:
            checked(cfg[key], SETTINGS[name], name)
        elif name not in GROUPS:
            raise BadInput(unknown(name, "", SETTINGS.keys() | GROUPS))
    for key in GROUPS:
        if not isinstance(cfg.get(key), DictConfig):
            raise BadInput(f"{key} = {cfg.get(key)} must be one of the files of conf/{key}")
    if missing:
        task_of(cfg)  # an attention that is not for the model lacks what its own preset brings
        raise BadInput(f"{missing[0]} must be given: {missing[0]}=...")
    if cfg.seed < 0:
        raise BadInput(f"seed = {cfg.seed} must be at least 0")
    for key in COUNTS:
        value = checked(OmegaConf.select(cfg, key), int, key)
        if value < 1:
            raise BadInput(f"{key} = {value} must be at least 1")
    _check_trainer(cfg)


def _check_trainer(cfg: DictConfig) -> None:
    """Refuse what Lightning would take and our contracts would not survive."""
    for key, value in cfg.trainer.items():
        if key not in TRAINER_FIXED:
            continue
        fixed = TRAINER_FIXED[str(key)]
        if value != fixed or type(value) is not type(fixed):  # 1 batch is not 1.0, all of them
            raise BadInput(f"trainer.{key} = {value} is not for attnlab; {WHY_FIXED}")
    if cfg.trainer.precision not in PRECISIONS:
        raise BadInput(
            f"trainer.precision = {cfg.trainer.precision} must be one of {', '.join(PRECISIONS)}"
        )
    clip = checked(cfg.trainer.gradient_clip_val, float | None, "trainer.gradient_clip_val")
    if clip is not None and not clip >= 0:
        raise BadInput(f"trainer.gradient_clip_val = {clip} must be at least 0, or null")
    devices = cfg.trainer.devices
    if isinstance(devices, int) and devices > 1 and cfg.data.batch_size % devices:
        raise BadInput(
            f"data.batch_size = {cfg.data.batch_size} must be a multiple of "
            f"trainer.devices = {devices}"
        )


def build_corpus(cfg: DictConfig) -> Data:
    """The corpus that `cfg.data` names."""
    corpus = build(cfg.data, "data", apart=BATCH_SIZE)()
    if not isinstance(corpus, Corpus | Pairs):
        raise BadInput(f"data._target_ = {cfg.data._target_} gives no Corpus but a {type(corpus)}")
    return corpus


def construct(cfg: DictConfig, vocab_size: int) -> Net:
    """The model that `cfg.model` and `cfg.attn` name, with PyTorch's default weights.

    Raises:
        BadInput: the values do not fit together.
    """
    task = task_of(cfg)
    model = build(cfg.model, "model", apart=task.apart, given=("attn", "vocab_size"))
    attn = build(cfg.attn, "attn", given=task.layer)
    try:
        net = model(attn=attn, vocab_size=vocab_size)
        if not isinstance(net, GPT | Translator):
            raise TypeError(f"model._target_ = {cfg.model._target_} gives no {task.net.__name__}")
        task.try_out(net)
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        # Constructors name the value that they refuse; the rest is of a user's own functions.
        raise BadInput(with_its_place(error)) from error
    return net


def build_model(cfg: DictConfig, vocab_size: int) -> Net:
    """The model that `cfg.model` and `cfg.attn` name, with the weights of `cfg.seed`.

    Raises:
        BadInput: the values do not fit together.
    """
    net = construct(cfg, vocab_size)
    try:
        task_of(cfg).draw(net, cfg)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return net


def build_optimizer(cfg: DictConfig) -> Callable[..., Any]:
    """What makes the optimizer and its schedule of (net, max_steps).

    Raises:
        BadInput: one of its numbers is out of range.
    """
    optim = build(cfg.optim, "optim", given=("net", "max_steps"))
    optim(torch.nn.Linear(1, 1), cfg.trainer.max_steps)  # refuses bad numbers
    return optim


def load_model(target: Path) -> tuple[GPT, str]:
    """The language model of a run folder (its last checkpoint) or of a checkpoint, in evaluation
    mode.

    Returns:
        the model on the CPU, and its alphabet: symbol i is alphabet[i].

    Raises:
        BadInput: there is no such thing, it is damaged, or it is a translator.
    """
    net, alphabet = _load(target)
    if not isinstance(net, GPT):
        raise BadInput(f"{target} holds a translator, and a language model is asked for")
    return net, str(alphabet)


def load_translator(target: Path) -> tuple[Translator, tuple[str, ...]]:
    """The translator of a run folder (its last checkpoint) or of a checkpoint, in evaluation mode.

    Returns:
        the model on the CPU, and its alphabet: word i is alphabet[i].

    Raises:
        BadInput: there is no such thing, it is damaged, or it is a language model.
    """
    net, alphabet = _load(target)
    if not isinstance(net, Translator):
        raise BadInput(f"{target} holds a language model, and a translator is asked for")
    return net, tuple(alphabet)


def _load(target: Path) -> tuple[Net, Any]:
    if not target.exists():
        raise BadInput(f"there is no run folder or checkpoint {target}")
    if target.is_dir():
        target = _last_checkpoint(RunDirectory(target))
    checkpoint = read_checkpoint(target)
    recipe = checkpoint["attnlab"]["recipe"]
    net = build_model(OmegaConf.create(recipe["config"]), len(recipe["alphabet"]))
    weights = checkpoint["state_dict"]
    try:
        net.load_state_dict({name.removeprefix("net."): x for name, x in weights.items()})
    except RuntimeError as error:
        raise BadInput(
            f"{target} does not hold the weights that its settings ask for; "
            "was it written by another version of attnlab?"
        ) from error
    return net.eval(), recipe["alphabet"]


def _last_checkpoint(folder: RunDirectory) -> Path:
    if not folder.status_file.exists():
        raise BadInput(f"{folder.path} is not a run folder: it has no status.json")
    if folder.last_checkpoint.exists():
        return folder.last_checkpoint
    status = folder.status()
    ended = {"diverged": "diverged at", "failed": "failed after"}.get(str(status.get("status")))
    why = f": the run {ended} step {status['step']}" if ended else " yet"
    raise BadInput(f"{folder.path} has no checkpoint{why}")
