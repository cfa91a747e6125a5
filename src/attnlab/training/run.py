"""The composition root: from a configuration to a trained model and a run folder.

The only place that builds objects from configurations; train.py, tests, sweeps and claims all
call `run`, and everything that opens a finished run calls `load_model`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab import fast_imports
from attnlab.errors import BadInput, with_its_place
from attnlab.model import GPT
from attnlab.training.checkpoints import read_checkpoint
from attnlab.training.instantiate import build, checked, locate, parameters, unknown
from attnlab.training.run_directory import RunDirectory, fingerprint
from attnlab.training.trainer_settings import check_arguments

if TYPE_CHECKING:
    from attnlab.training.lightning_module import TaskData, TaskModule

GROUPS = {"attn", "model", "data", "optim", "trainer", "probes", "callbacks", "logger"}
SETTINGS: dict[str, Any] = {
    "name": str | int | float,
    "module": str,
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
# Stands in its group for the reader's sake and is not its target's.
BATCH_SIZE = ("batch_size",)


@dataclass
class Result:
    """What a run left.

    Args:
        folder: the run folder.
        metrics: the content of metrics.json.
        module: the class of the task.
        fresh: False where the folder was finished before, and nothing was done.
    """

    folder: Path
    metrics: dict[str, Any]
    module: "type[TaskModule]"
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
    module = module_of(cfg)
    construct(cfg, vocab_size=1)  # bad sizes are refused before a corpus is fetched
    corpus = build_corpus(cfg)
    if not isinstance(corpus, module.data_class):
        raise BadInput(
            f"data._target_ = {cfg.data._target_} is not for module = {cfg.module}, which needs "
            f"{module.needs}"
        )
    net = build_model(cfg, len(corpus.alphabet))
    digest = fingerprint(cfg, corpus.sha256)
    held = RunDirectory(folder)
    held.status()  # refuses a folder that is somebody else's, with force=true too
    if not cfg.force:
        held.check_is_ours(cfg, digest)
        if held.is_done():
            return Result(folder, held.metrics(), module, fresh=False)
    with fast_imports.imports():  # PyTorch's first optimizer imports its compiler
        optim = build_optimizer(cfg)
    recipe = {
        "config": OmegaConf.to_container(cfg, resolve=True),
        "alphabet": corpus.alphabet,
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
    }
    batch_size = cfg.data.batch_size
    lit = module(net, corpus, optim, batch_size=batch_size, seed=cfg.seed, recipe=recipe)
    lit.check_data()
    from attnlab.training.fit import fit

    return Result(folder, fit(cfg, lit, held, digest, variant, overrides), module)


def module_of(cfg: DictConfig) -> "type[TaskModule]":
    """The task of a run, a subclass of TaskModule, and whether `cfg.attn` is for it.

    Raises:
        BadInput: there is no such class, or the attention is for another task.
    """
    # Lightning takes seconds to import; what could be refused without it has been by now.
    with fast_imports.imports():
        fast_imports.import_torchmetrics()
        from attnlab.training.lightning_module import TaskModule
    module = locate(str(cfg.module), "module")
    if not isinstance(module, type) or not issubclass(module, TaskModule):
        raise BadInput(f"module = {cfg.module} must be a subclass of {TaskModule.__name__}")
    attn = locate(str(cfg.attn._target_), "attn._target_")
    if isinstance(attn, type) and not issubclass(attn, module.attention_class):
        raise BadInput(
            f"attn._target_ = {cfg.attn._target_} is not for module = {cfg.module}, which needs "
            f"{module.needs}"
        )
    return module


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
    check_arguments(cfg.trainer)
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


def build_corpus(cfg: DictConfig) -> "TaskData":
    """The corpus that `cfg.data` names."""
    corpus: TaskData = build(cfg.data, "data", apart=BATCH_SIZE)()
    return corpus


def construct(cfg: DictConfig, vocab_size: int) -> torch.nn.Module:
    """The model that `cfg.model` and `cfg.attn` name, with PyTorch's default weights.

    Raises:
        BadInput: the values do not fit together.
    """
    module = module_of(cfg)
    apart = _init_settings(module)
    model = build(cfg.model, "model", apart=apart, given=("attn", "vocab_size"))
    attn = build(cfg.attn, "attn", given=module.attention_arguments)
    try:
        net: torch.nn.Module = model(attn=attn, vocab_size=vocab_size)
        if not isinstance(net, module.model_class):
            raise TypeError(
                f"model._target_ = {cfg.model._target_} must be a {module.model_class.__name__} "
                f"for module = {cfg.module}"
            )
        module.try_forward(net)
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        # Constructors name the value that they refuse; the rest is of a user's own functions.
        raise BadInput(with_its_place(error)) from error
    return net


def _init_settings(module: "type[TaskModule]") -> dict[str, Any]:
    """The keys of `model` that say how weights are drawn, with their types."""
    taken = parameters(module.init_weights, "module")
    return {name: hint for name, hint in taken.items() if name not in ("net", "seed")}


def build_model(cfg: DictConfig, vocab_size: int) -> Any:
    """The model that `cfg.model` and `cfg.attn` name, with the weights of `cfg.seed`.

    Raises:
        BadInput: the values do not fit together.
    """
    net, module = construct(cfg, vocab_size), module_of(cfg)
    settings = {
        name: checked(cfg.model[name], hint, f"model.{name}")
        for name, hint in _init_settings(module).items()
    }
    try:
        module.init_weights(net, cfg.seed, **settings)
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
    """The language model of a run directory (its last checkpoint) or of a checkpoint, in
    evaluation mode.

    Returns:
        the model on the CPU, and its alphabet: symbol i is alphabet[i].

    Raises:
        BadInput: there is no such thing, it is damaged, or it holds another model than a GPT.
    """
    net, alphabet = load_any(target)
    if not isinstance(net, GPT):
        raise BadInput(f"{target} holds a {type(net).__name__}, and a GPT is needed")
    return net, str(alphabet)


def load_any(target: Path) -> tuple[torch.nn.Module, Any]:
    """The model of any task, in evaluation mode, and its alphabet; see `load_model`."""
    net, recipe = load_with_recipe(target)
    return net, recipe["alphabet"]


def load_with_recipe(target: Path) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model of any task, in evaluation mode, and what its checkpoint says of the run: the
    configuration, the alphabet and the corpus."""
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
    return net.eval(), recipe


def _last_checkpoint(folder: RunDirectory) -> Path:
    if not folder.status_file.exists():
        raise BadInput(f"{folder.path} is not a run folder: it has no status.json")
    if folder.last_checkpoint.exists():
        return folder.last_checkpoint
    status = folder.status()
    ended = {"diverged": "diverged at", "failed": "failed after"}.get(str(status.get("status")))
    why = f": the run {ended} step {status['step']}" if ended else " yet"
    raise BadInput(f"{folder.path} has no checkpoint{why}")
