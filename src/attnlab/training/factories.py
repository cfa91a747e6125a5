"""Functions that make the objects of a run from nodes of its configuration."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import isclass, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from attnlab.attention.variant import PerLayer
from attnlab.errors import BadInput, first_line, users_frame, with_location
from attnlab.files import read_json, read_yaml
from attnlab.training.instantiate import build, locate, parameters

if TYPE_CHECKING:
    import lightning.pytorch as L
    from lightning.pytorch.loggers import Logger
    from torch import nn

    from attnlab.data.batches import TaskData

ENTRIES = "loggers.json"  # class of a logger -> id of the run at its service


@cache
def refused() -> dict[str, Any]:
    """The arguments of Trainer and the callbacks that a run refuses, and why."""
    return dict(read_yaml(Path(__file__).with_name("refused.yaml")))


def data_factory(node: DictConfig) -> "Callable[[], TaskData]":
    """A function that makes the data of the group `data`."""
    # For the batches and the evaluation at the end, not for the data.
    return build(node, "data", apart=("batch_size", "eval_lengths"))


def model_factory(model: DictConfig, attn: DictConfig) -> "Callable[[int], nn.Module]":
    """A function that makes a model for a vocabulary size, with PyTorch's default weights;
    BadInput, here or when it is called, if the values do not fit together.

    Keys of `model` that its class does not take are left out; `read_config` refuses them.
    """
    target = locate(str(model._target_), "model._target_")
    taken = parameters(target, "model._target_")
    apart = [str(key) for key in model if key not in taken]
    make_model = build(model, "model", apart=apart, supplied=("attn", "vocab_size"))
    # The arguments with which the model makes its layers: a GPT gives a config.
    hint, arguments = taken.get("attn"), ["config"]
    if isclass(hint) and "__call__" in vars(hint):
        arguments = list(signature(hint.__call__).parameters)[1:]
    nodes = attention_nodes(attn)
    makes = [build(node, path, supplied=arguments) for path, node in nodes.items()]
    if "layers" in attn and arguments != ["config"]:
        raise BadInput(f"model._target_ = {model._target_} takes one variant of attn, not a list")
    make_attention = PerLayer(makes) if "layers" in attn else makes[0]

    def make(vocab_size: int) -> "nn.Module":
        with users_errors("making the model"):
            net: nn.Module = make_model(attn=make_attention, vocab_size=vocab_size)
        return net

    return make


def attention_nodes(attn: DictConfig) -> dict[str, DictConfig]:
    """The nodes of a list of variants, or the only one, by their place in the configuration."""
    if "layers" not in attn:
        return {"attn": attn}
    return {f"attn.layers.{number}": node for number, node in attn.layers.items()}


@contextmanager
def users_errors(doing: str) -> Iterator[None]:
    """Turn errors of the user's values and code into BadInput; `doing` is what they prevent."""
    try:
        yield
    except BadInput:
        raise
    except ValueError as error:  # it names the value that is refused
        raise BadInput(with_location(error)) from error
    except Exception as error:
        said = with_location(error)
        if users_frame(error) is None:
            if not isinstance(error, TypeError | RuntimeError | AttributeError | MemoryError):
                raise
            said = memory_message(error) or f"{doing} fails: {said}"
        raise BadInput(said) from error


def memory_message(error: BaseException) -> str | None:
    """What to do if an error means that memory ran out; None for other errors."""
    import torch

    in_pytorch = "can't allocate memory" in str(error)  # a RuntimeError, on a CPU
    if in_pytorch or isinstance(error, MemoryError | torch.OutOfMemoryError):
        advice = "out of memory; use a smaller data.batch_size, model.block_size or model"
        return f"{advice} ({first_line(error)})"
    return None


def make_callback(node: DictConfig, path: str) -> "L.Callback":
    """Build a callback; BadInput if it would have no effect or break a run."""
    import lightning.pytorch as L  # takes seconds, and the settings are checked before

    target = locate(str(node._target_), f"{path}._target_")
    parents = [c.__name__ for c in target.__mro__] if isinstance(target, type) else []
    for name in parents:
        if reason := refused()["callbacks"].get(name):
            raise BadInput(f"{path}: {name} is not supported: {reason}")
    if parents[:1] == ["BaseFinetuning"]:
        raise BadInput(f"{path}: BaseFinetuning is not supported: derive a class from it")
    make = build(node, path)
    try:
        callback: L.Callback = make()
    except Exception as error:  # whatever a user's own class raises
        raise BadInput(f"{path} cannot be built: {with_location(error)}") from error
    if not isinstance(callback, L.Callback):
        raise BadInput(f"{path} = {node._target_} must be a Lightning callback")
    return callback


def make_logger(node: DictConfig, path: str, folder: Path, resume_step: int | None) -> "Logger":
    """A logger that writes into the run directory by default; BadInput if it cannot be made."""
    from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

    # Loggers of services, and their arguments for the name and the id of a run.
    services: dict[Any, Any] = {WandbLogger: ("name", "id"), MLFlowLogger: ("run_name", "run_id")}
    target = locate(str(node._target_), f"{path}._target_")
    added: dict[str, Any] = {}
    if target in services:
        name, id_ = services[target]
        added[name] = f"{folder.parent.name}/{folder.name}"
        if resume_step is not None and (folder / ENTRIES).exists():
            added[id_] = read_json(folder / ENTRIES).get(target.__name__)
        added = {key: value for key, value in added.items() if node.get(key) is None}
    if "save_dir" in signature(target).parameters and "save_dir" not in node:
        added["save_dir"] = str(folder)
    if target is TensorBoardLogger and resume_step is not None:
        # TensorBoard drops what the interrupted part logged after its checkpoint.
        added["purge_step"] = resume_step + 1
    try:
        logger: Logger = build(node, path, supplied=added)(**added)
    except ModuleNotFoundError as error:
        extra = path.rpartition(".")[2]
        raise BadInput(
            f"{path} needs a package that is missing; install it with: pip install -e '.[{extra}]'"
        ) from error
    return logger
